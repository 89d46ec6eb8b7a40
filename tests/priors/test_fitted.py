import math

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import nn

from leanbayes.bayesian import Bayesian
from leanbayes.kl import Exact
from leanbayes.posteriors import Normal, RandomWeight
from leanbayes.priors import (
    FittedPrior,
)
from tests.oracles import normal_kl
from tests.priors.cases import some_weight


@pytest.mark.parametrize("index", [None, [0, 5, 7, 11]])
def test_it_minimises_the_divergence_over_its_scale(index):
    weight = some_weight(index)
    mean, scale = weight.random_mean, weight.spread

    def kl(log_s: float) -> float:
        return normal_kl(mean, scale, 0.0, math.exp(log_s)).item()

    best = optimize.minimize_scalar(kl, bounds=(-6, 6), method="bounded", options={"xatol": 1e-10})
    law = FittedPrior().distribution(weight, None)
    assert law.loc.item() == 0
    assert law.scale.shape == ()
    assert law.scale.item() == pytest.approx(math.exp(best.x), rel=1e-6)
    assert Exact()(weight, law).item() == pytest.approx(best.fun, rel=1e-12)


@pytest.mark.parametrize("index", [None, [0, 5, 7, 11]])
def test_the_gradient_is_that_of_the_minimum(index):
    """∇ min_s KL by finite differences of a numeric minimisation, against autograd with s held constant."""
    start = some_weight(index)
    mean, scale = start.mean.clone().requires_grad_(), start.spread.clone().requires_grad_()
    weight = RandomWeight("w", mean, start.index, scale, Normal())
    Exact()(weight, FittedPrior().distribution(weight, None)).backward()

    def minimum(flat: np.ndarray) -> float:
        m, s = (torch.from_numpy(part) for part in np.split(flat, [start.mean.numel()]))
        m = m if start.index is None else m[start.index]
        second = (m.flatten() ** 2 + s**2).sum().item()
        n, entropy = s.numel(), s.log().sum().item()

        def kl(log_s: float) -> float:
            return n * log_s + second / (2 * math.exp(2 * log_s)) - entropy - n / 2

        return optimize.minimize_scalar(kl, bounds=(-6, 6), method="bounded", options={"xatol": 1e-11}).fun

    point = np.concatenate([start.mean.flatten().numpy(), start.spread.flatten().numpy()])
    numeric = [(minimum(point + 1e-5 * unit) - minimum(point - 1e-5 * unit)) / 2e-5 for unit in np.eye(len(point))]
    analytic = torch.cat([mean.grad.flatten(), scale.grad.flatten()])
    np.testing.assert_allclose(analytic.numpy(), numeric, rtol=1e-5, atol=1e-7)
    assert np.abs(numeric).max() > 0.1


def test_it_follows_the_weights():
    model = nn.Linear(3, 2).double()
    bnn = Bayesian(model, prior=FittedPrior(), posterior=Normal(0.1))
    before = bnn.kl().item()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10)
    expected = 0.0
    for parameter in model.parameters():
        s = (parameter**2 + 0.01).mean().sqrt()
        expected += normal_kl(parameter, torch.full_like(parameter, 0.1), 0.0, s).item()
    assert bnn.kl().item() == pytest.approx(expected, rel=1e-10)
    assert bnn.kl().item() > before


def test_no_gradient_runs_through_the_scale():
    weight = some_weight()
    weight.mean.requires_grad_()
    assert not FittedPrior().distribution(weight, None).scale.requires_grad
