"""The last layer, also of odd models."""

import pytest
from torch import nn

import leanbayes as lb
from leanbayes.subspace import last_layer
from tests import tasks


def test_the_last_layer_of_odd_models() -> None:
    assert last_layer(tasks.cnn()) == "4"
    with pytest.raises(lb.errors.InputError, match="globs"):
        last_layer(nn.Linear(2, 2))
