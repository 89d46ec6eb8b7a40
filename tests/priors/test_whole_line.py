import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.distributions import Normal as TorchNormal

from leanbayes.bayesian import Bayesian
from leanbayes.kl import MonteCarlo
from leanbayes.priors import (
    ErrorLaw,
    HorseshoeLaw,
    LogisticLaw,
    RadialLaw,
)
from tests.priors.cases import number


@pytest.mark.parametrize(
    ("law", "expected"),
    [
        (LogisticLaw(number(0.3), number(1.5)), stats.logistic(0.3, 1.5)),
        (ErrorLaw(number(0.3), number(1.5), number(1.2)), stats.gennorm(2 / 1.2, 0.3, 1.5 * 2**0.6)),
        (ErrorLaw(number(0.3), number(1.5), number(1.0)), stats.norm(0.3, 1.5)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_densities(law, expected):
    points = np.linspace(0.05, 9, 200)
    result = law.log_prob(torch.from_numpy(points))
    np.testing.assert_allclose(result.numpy(), expected.logpdf(points), rtol=1e-10, atol=1e-12)


def test_the_horseshoe_is_a_mixture_of_normals():
    """∫ N(w; m, (sλ)²) C⁺(λ) dλ by quadrature in log λ."""
    law = HorseshoeLaw(number(0.3), number(0.7))
    t = np.linspace(-30, 30, 20_001)
    points = np.array([0.301, 0.5, -1.0, 4.0, 60.0])
    scales = 0.7 * np.exp(t)
    mixture = stats.norm.pdf(points[:, None], 0.3, scales) * stats.halfcauchy.pdf(np.exp(t)) * np.exp(t)
    expected = np.log(mixture.sum(1) * (t[1] - t[0]))
    np.testing.assert_allclose(law.log_prob(torch.from_numpy(points)).numpy(), expected, rtol=1e-8)


def test_the_radial_one_is_of_a_whole_tensor():
    law, points = RadialLaw(number(0.5), number(2.0)), torch.randn(3, 2, dtype=torch.float64)
    z = (points - 0.5) / 2
    r, n = z.norm(), 6
    surface = 2 * math.pi ** (n / 2) / math.gamma(n / 2)
    expected = math.log(2) + stats.norm.logpdf(r) - (n - 1) * math.log(r) - math.log(surface) - n * math.log(2)
    assert law.log_prob(points).item() == pytest.approx(expected, rel=1e-10)
    one = RadialLaw(number(0.5), number(2.0)).log_prob(points[0, :1])
    torch.testing.assert_close(one, TorchNormal(number(0.5), number(2.0)).log_prob(points[0, 0]))


def test_in_a_model():
    for law in (LogisticLaw(0.0, 1.0), HorseshoeLaw(0.0, 1.0), RadialLaw(0.0, 1.0), ErrorLaw(0.0, 1.0, 1.5)):
        bnn = Bayesian(nn.Linear(3, 2), prior=law, kl=MonteCarlo(3))
        bnn.kl().backward()
        assert all(parameter.grad.isfinite().all() for parameter in bnn.parameters())
