import pytest
import torch
from torch import nn
from torch.distributions import Normal as TorchNormal

from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError, SelectionError
from leanbayes.posteriors import Normal
from leanbayes.priors import (
    FittedPrior,
    FixedPrior,
    resolve_priors,
)
from leanbayes.subspace import layers
from tests.oracles import normal_kl

NAMES = ["stem.weight", "stem.bias", "fc.weight", "fc.bias"]


def test_one_law_is_for_every_tensor():
    prior = TorchNormal(0.0, 3.0)
    result = resolve_priors(prior, NAMES)
    assert list(result) == NAMES
    assert all(p == FixedPrior(prior) for p in result.values())


def test_the_first_match_wins():
    wide, narrow, fitted = TorchNormal(0.0, 10.0), TorchNormal(0.0, 0.1), FittedPrior()
    result = resolve_priors({"*.bias": wide, "fc.*": fitted, "*": narrow}, NAMES)
    assert result == {
        "stem.weight": FixedPrior(narrow),
        "stem.bias": FixedPrior(wide),
        "fc.weight": fitted,
        "fc.bias": FixedPrior(wide),
    }


def test_a_pattern_without_a_match():
    with pytest.raises(SelectionError) as caught:
        resolve_priors({"head.*": FittedPrior(), "*": FittedPrior()}, NAMES)
    assert "'head.*' matched none of 4 random tensors" in str(caught.value)
    assert str(NAMES[:3]) in str(caught.value)


def test_a_tensor_without_a_match():
    with pytest.raises(SelectionError, match=r"no prior for 'stem.weight' among the patterns \['fc.\*'\]; add '\*'"):
        resolve_priors({"fc.*": FittedPrior()}, NAMES)


def test_no_pattern_at_all():
    with pytest.raises(SelectionError, match=r"no prior for 'stem\.weight'"):
        resolve_priors({}, NAMES)


@pytest.mark.parametrize("bad", [1.0, "normal", None, {"*": 3.0}, [TorchNormal(0.0, 1.0)]])
def test_what_is_no_prior(bad):
    with pytest.raises(InputError, match="a prior is a torch distribution, a leanbayes Prior or a mapping"):
        resolve_priors(bad, NAMES)


def test_globs_are_over_the_random_tensors():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    with pytest.raises(SelectionError, match=r"'0.\*' matched none of 2 random tensors"):
        Bayesian(model, subspace=layers("1"), prior={"0.*": FittedPrior(), "*": FittedPrior()})


def test_each_tensor_pays_for_its_own_prior():
    model = nn.Linear(3, 2).double()
    priors = {"weight": TorchNormal(0.5, 2.0), "bias": TorchNormal(0.0, 0.1)}
    bnn = Bayesian(model, prior=priors, posterior=Normal(0.3))
    scale = torch.tensor(0.3)
    expected = normal_kl(model.weight, scale.expand(2, 3), 0.5, 2.0) + normal_kl(model.bias, scale.expand(2), 0.0, 0.1)
    assert bnn.kl().item() == pytest.approx(expected.item(), rel=1e-6)
