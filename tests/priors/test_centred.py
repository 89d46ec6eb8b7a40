import math

import pytest
import torch
from torch import Tensor, nn

from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError
from leanbayes.posteriors import Normal
from leanbayes.priors import (
    CentredPrior,
)
from leanbayes.subspace import top_k
from tests.oracles import normal_kl


def test_it_remembers_the_trained_weights():
    model = nn.Linear(4, 3).double()
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    bnn = Bayesian(model, prior=CentredPrior(0.2), posterior=Normal(0.05))

    def expected() -> Tensor:
        return sum(
            normal_kl(p.detach(), torch.full_like(p, 0.05), start[name], 0.2) for name, p in model.named_parameters()
        )

    at_start = bnn.kl().item()
    assert at_start == pytest.approx(expected().item(), rel=1e-10)
    assert at_start == pytest.approx(15 * (math.log(4) + 0.0625 / 2 - 0.5), rel=1e-10)
    with torch.no_grad():
        model.weight += 0.3
    assert bnn.kl().item() == pytest.approx(at_start + 12 * 0.3**2 / (2 * 0.2**2), rel=1e-10)
    assert bnn.kl().item() == pytest.approx(expected().item(), rel=1e-10)


def test_the_gradient_is_zero_at_the_trained_weights_and_right_beside_them():
    """At the centre the distance is exactly 0, where the derivative of a norm is not defined."""
    model = nn.Linear(4, 3).double()
    bnn = Bayesian(model, prior=CentredPrior(0.2))
    bnn.kl().backward()
    assert torch.equal(model.weight.grad, torch.zeros(3, 4, dtype=torch.float64))
    model.zero_grad()
    with torch.no_grad():
        model.weight[1, 2] += 1e-9
    bnn.kl().backward()
    assert model.weight.grad[1, 2].item() == pytest.approx(1e-9 / 0.2**2, rel=1e-5)
    assert model.weight.grad.count_nonzero() == 1


def test_only_the_random_coordinates_are_kept():
    model = nn.Linear(50, 2).double()
    scores = {name: torch.rand(p.shape) for name, p in model.named_parameters()}
    bnn = Bayesian(model, subspace=top_k(scores, k=5), prior=CentredPrior())
    kept = {name: parts.memory for name, parts in bnn.parts()}
    assert sum(memory.numel() for memory in kept.values()) == 5
    for name, parts in bnn.parts():
        whole = dict(model.named_parameters())[name].detach().flatten()
        assert torch.equal(kept[name], whole if parts.index is None else whole[parts.index])


def test_the_memory_is_a_copy_and_travels_with_the_state():
    model = nn.Linear(2, 1)
    bnn = Bayesian(model, prior=CentredPrior())
    with torch.no_grad():
        model.weight.zero_()
    memory = {key: value for key, value in bnn.state_dict().items() if key.endswith("memory")}
    assert len(memory) == 2
    assert all(value.any() for value in memory.values())


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_bad_scales(scale):
    with pytest.raises(InputError, match="CentredPrior needs a positive finite scale, got"):
        CentredPrior(scale)
