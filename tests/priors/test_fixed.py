import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Independent, Laplace, MultivariateNormal
from torch.distributions import Normal as TorchNormal

from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError
from leanbayes.priors import (
    FixedPrior,
    resolve_priors,
)
from tests.priors.cases import some_weight


def test_one_law_for_all():
    law = Laplace(0.0, 2.0)
    prior = FixedPrior(law)
    assert prior.remember(torch.ones(2)) is None
    assert prior.distribution(some_weight(), None) is law


@pytest.mark.parametrize(
    "law",
    [
        TorchNormal(torch.zeros(3), torch.ones(3)),
        TorchNormal(torch.zeros(1), 1.0),
        MultivariateNormal(torch.zeros(2), torch.eye(2)),
        Independent(TorchNormal(torch.zeros(2), 1.0), 1),
        Categorical(torch.ones(2, 3)),
    ],
    ids=lambda law: type(law).__name__,
)
def test_a_law_of_several_numbers_is_refused(law):
    for make in (
        FixedPrior,
        lambda law: resolve_priors(law, ["weight", "bias"]),
        lambda law: Bayesian(nn.Linear(2, 1), prior=law),
    ):
        with pytest.raises(InputError, match=r"distribution of one number, got .* batch shape \(.*scalars"):
            make(law)
