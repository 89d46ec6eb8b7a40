import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.stats import norm
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.baselines import Ensemble, NoiseScale, Temperature, rescaling_for
from leanbayes.errors import InputError, NonFinite

BY_INPUT = lb.Gaussian(noise="input")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def outputs_and_targets(count: int = 3000, factor: float = 1.0) -> tuple[Tensor, Tensor]:
    """Means and log-variances that are right when the deviation is multiplied by ``factor``, and numbers from them."""
    mean, log_variance = torch.randn(2, count, 1, generator=seeded(), dtype=torch.float64)
    noise = torch.randn(count, 1, generator=seeded(1), dtype=torch.float64)
    return torch.cat([mean, log_variance], 1), mean + factor * (log_variance / 2).exp() * noise


def batches(x: Tensor, y: Tensor, size: int = 700) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.split(size), y.split(size), strict=True))


@pytest.mark.parametrize("factor", [0.2, 1.0, 3.0])
def test_the_factor_is_that_of_the_closed_form(factor: float) -> None:
    """Without epistemic uncertainty, the best squared factor is the mean of the squared standardised errors."""
    out, y = outputs_and_targets(factor=factor)
    scaled = NoiseScale.fit(nn.Identity(), batches(out, y), BY_INPUT)
    expected = ((y - out[:, :1]).square() / out[:, 1:].exp()).mean().sqrt().item()
    assert scaled.factor == pytest.approx(expected, rel=1e-4)
    assert scaled.factor == pytest.approx(factor, rel=0.05)  # the standard error is 1/√(2·3000) = 1.3 %
    prediction = lb.predict(scaled, out, likelihood=BY_INPUT)
    torch.testing.assert_close(prediction.aleatoric, out[:, 1:].exp() * scaled.factor**2, rtol=1e-6, atol=0)
    nll = -norm.logpdf(y.numpy(), prediction.mean.numpy(), prediction.total.sqrt().numpy()).mean()
    assert scaled.validation_nll == pytest.approx(nll, abs=1e-9)
    assert scaled.validation_targets == 3000


def test_epistemic_variance_counts_and_scipy_agrees() -> None:
    out, y = outputs_and_targets(factor=2.0)
    members = [nn.Linear(2, 2).double() for _ in range(3)]
    with torch.no_grad():
        for seed, member in enumerate(members):
            member.weight.copy_(torch.eye(2))
            member.bias.copy_(0.7 * torch.randn(2, generator=seeded(seed), dtype=torch.float64))
    ensemble = Ensemble(*members)
    scaled = NoiseScale.fit(ensemble, batches(out, y), BY_INPUT)
    plain = lb.predict(ensemble, out, likelihood=BY_INPUT)
    square, a, e = ((y - plain.mean).square().numpy(), plain.aleatoric.numpy(), plain.epistemic.numpy())

    def nll(log_factor: float) -> float:
        variance = a * np.exp(2 * log_factor) + e
        return float(0.5 * (square / variance + np.log(2 * np.pi * variance)).mean())

    best = minimize_scalar(nll, bounds=(-2, 2), method="bounded", options={"xatol": 1e-9})
    assert e.min() > 0.01
    assert math.log(scaled.factor) == pytest.approx(best.x, abs=1e-4)
    assert scaled.validation_nll == pytest.approx(best.fun, abs=1e-7)
    after = lb.predict(scaled, out, likelihood=BY_INPUT)
    torch.testing.assert_close(after.epistemic, plain.epistemic)


def test_one_pass_stays_one_pass_and_keeps_the_doubt_of_the_weights() -> None:
    torch.manual_seed(0)
    bnn = lb.Bayesian(nn.Linear(3, 2), predict_by="moments")
    x = torch.randn(6, 3)
    plain, twice = (lb.predict(model, x, likelihood=BY_INPUT) for model in (bnn, NoiseScale.by(bnn, 2.0)))
    assert int(twice.draws[0]) == 1
    torch.testing.assert_close(twice.mean, plain.mean)
    torch.testing.assert_close(twice.epistemic, plain.epistemic)
    torch.testing.assert_close(twice.aleatoric, 4 * plain.aleatoric)
    joint = lb.Bayesian(nn.Linear(3, 2), predict_by="covariance")
    plain, twice = (lb.predict(model, x, likelihood=BY_INPUT) for model in (joint, NoiseScale.by(joint, 2.0)))
    torch.testing.assert_close(twice.aleatoric, 4 * plain.aleatoric)


def test_a_prior_holds_the_factor_back_where_data_are_few() -> None:
    """With one target whose standardised error is r, the cost is (r/f)²/2 + log f + (log f)²/2s², in closed form."""
    out, y = torch.zeros(1, 2, dtype=torch.float64), torch.full((1, 1), 3.0, dtype=torch.float64)
    free, held = (NoiseScale.fit(nn.Identity(), [(out, y)], BY_INPUT, prior=prior) for prior in (None, 0.5))
    assert free.factor == pytest.approx(3.0, rel=1e-3)
    log_f = math.log(held.factor)
    assert -9 * math.exp(-2 * log_f) + 1 + log_f / 0.25 == pytest.approx(0, abs=0.01)


def test_a_pair_of_outputs_and_a_file(tmp_path: Path) -> None:
    class Pair(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x[:, :1], x[:, 1:]

    mean, log_variance = NoiseScale.by(Pair(), 3.0)(torch.zeros(2, 2))
    assert torch.equal(mean, torch.zeros(2, 1))
    torch.testing.assert_close(log_variance, torch.full((2, 1), 2 * math.log(3.0)))
    model = nn.Linear(1, 2)
    lb.save(NoiseScale.by(model, 0.25), tmp_path / "model.lb")
    loaded = lb.load(tmp_path / "model.lb", nn.Linear(1, 2))
    assert isinstance(loaded, NoiseScale)
    assert loaded.factor == pytest.approx(0.25)


def test_bad_input_says_what_to_do() -> None:
    out, y = outputs_and_targets(10)
    with pytest.raises(InputError, match="Temperature"):
        NoiseScale.fit(nn.Identity(), [(out, y)], lb.Categorical())
    with pytest.raises(InputError, match="input"):
        NoiseScale.fit(nn.Identity(), [(out, y)], lb.Gaussian("learned"))
    with pytest.raises(InputError, match="no targets"):
        NoiseScale.fit(nn.Identity(), [], BY_INPUT)
    with pytest.raises(InputError, match="prior"):
        NoiseScale.fit(nn.Identity(), [(out, y)], BY_INPUT, prior=0.0)
    with pytest.raises(NonFinite, match="NaN"):
        NoiseScale.fit(nn.Identity(), [(out, torch.full_like(y, math.nan))], BY_INPUT)
    with pytest.raises(InputError, match=r"shape \(2, 3\)"):
        NoiseScale(nn.Identity())(torch.zeros(2, 3))
    with pytest.raises(InputError, match="positive"):
        NoiseScale.by(nn.Identity(), 0.0)


def test_which_rescaling_a_likelihood_has() -> None:
    assert rescaling_for(lb.Categorical()) is Temperature
    assert rescaling_for(lb.Bernoulli()) is Temperature
    assert rescaling_for(BY_INPUT) is NoiseScale
    assert rescaling_for(lb.Gaussian("learned")) is None
