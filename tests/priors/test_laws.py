"""What every distribution in `LAWS` must do: a new one inherits these tests by lying in the package."""

import math

import pytest
import torch

from leanbayes.errors import InputError
from leanbayes.priors import (
    LAWS,
)
from tests.priors.cases import number


@pytest.mark.parametrize("name", LAWS)
def test_gradients_and_repr(name):
    law = LAWS[name](*([number(0.6), number(1.1), number(1.4)][: len(LAWS[name].arg_constraints)]))
    points = torch.tensor([0.4, 1.5, 3.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(law.log_prob, (points,))
    assert torch.autograd.gradgradcheck(law.log_prob, (points,))
    assert name in repr(law)


@pytest.mark.parametrize("name", LAWS)
def test_bad_parameters(name):
    place = 0.6 if len(LAWS[name].arg_constraints) > 1 else math.nan
    with pytest.raises((ValueError, InputError)):
        LAWS[name](*([place, -1.0, 1.4][: len(LAWS[name].arg_constraints)]), validate_args=True)
