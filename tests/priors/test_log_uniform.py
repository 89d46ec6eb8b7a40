import itertools
import math

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from torch import nn
from torch.distributions import Normal as TorchNormal

from leanbayes.bayesian import Bayesian
from leanbayes.priors import (
    LogUniformLaw,
)


def log_uniform_kl(ratio: float) -> float:
    """KL(N(r, 1)‖1/|w|) less its value at r = 0: E log|ε + r| − E log|ε|, by quadrature around the pole."""
    density = stats.norm(ratio, 1).pdf
    low, high = ratio - 12, ratio + 12
    cuts = sorted({low, min(max(low, 0.0), high), high})
    total = sum(
        integrate.quad(lambda w: density(w) * math.log(abs(w)), a, b, limit=400, epsabs=1e-10)[0]
        for a, b in itertools.pairwise(cuts)
    )
    return total + 0.5 * (np.euler_gamma + math.log(2))


def series_kl(ratio: float) -> float:
    """The same by another way: log w² is that of a noncentral χ², a Poisson mixture of digammas."""
    terms = np.arange(4000)
    weights = stats.poisson(ratio**2 / 2).pmf(terms)
    return 0.5 * float((weights * special.digamma(0.5 + terms)).sum() + 2 * math.log(2) + np.euler_gamma)


def test_the_divergence_to_a_log_uniform_prior_is_within_a_hundredth() -> None:
    ratios = [0.0, 1e-4, 0.01, 0.1, 0.3, 0.5, 0.8, 1.0, 1.3, 1.7, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0, 30.0]
    truth = np.array([log_uniform_kl(ratio) for ratio in ratios])
    assert truth == pytest.approx([series_kl(ratio) for ratio in ratios], abs=1e-7)
    for scale, place in ((1.0, 0.0), (1e-3, 0.0), (50.0, 2.0)):
        mean = scale * torch.tensor(ratios, dtype=torch.float64) + place
        posterior = TorchNormal(mean, torch.full_like(mean, scale))
        result = torch.distributions.kl_divergence(posterior, LogUniformLaw(place))
        assert np.abs(result.numpy() - truth).max() < 0.01
        mirrored = torch.distributions.kl_divergence(TorchNormal(2 * place - mean, scale), LogUniformLaw(place))
        torch.testing.assert_close(mirrored, result)
    far = torch.distributions.kl_divergence(TorchNormal(1e4, 1.0), LogUniformLaw(0.0))
    assert float(far) == pytest.approx(math.log(1e4) + 0.5 * (np.euler_gamma + math.log(2)), abs=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_divergence_to_a_log_uniform_prior_has_finite_slopes(dtype: torch.dtype) -> None:
    """Exactly at zero, where every newcomer of a rewired network is, and at extreme scales."""
    mean = torch.tensor([0.0, 0.0, 1e-12, 1e-3, 5.0, -5.0], dtype=dtype, requires_grad=True)
    scale = torch.tensor([1e-4, 10.0, 1.0, 1e-4, 1e-6, 1e3], dtype=dtype, requires_grad=True)
    result = torch.distributions.kl_divergence(TorchNormal(mean, scale), LogUniformLaw(0.0))
    slopes = torch.autograd.grad(result.sum(), (mean, scale))
    assert result.isfinite().all()
    assert (result >= 0).all()
    assert all(slope.isfinite().all() for slope in slopes)
    assert (slopes[0][:2] == 0).all()
    assert slopes[0][3] > 0
    assert slopes[0][5] <= 0
    assert (slopes[1] <= 1e-6).all()


def test_a_log_uniform_prior_in_a_model() -> None:
    bnn = Bayesian(nn.Linear(3, 2).double(), prior=LogUniformLaw(0.0))
    ratios = [ratio for w in bnn.weights().values() for ratio in (w.mean / w.spread).abs().flatten().tolist()]
    assert bnn.kl().item() == pytest.approx(sum(map(series_kl, ratios)), abs=0.01 * len(ratios))
    with torch.no_grad():
        bnn.model.weight.zero_()
    bnn.kl().backward()
    assert all(p.grad.isfinite().all() for p in bnn.parameters())
    assert float(LogUniformLaw(1.0).log_prob(torch.tensor(3.0))) == pytest.approx(-math.log(2))
