"""Regression metrics against scipy, scikit-learn and numerical integration."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from sklearn.metrics import root_mean_squared_error
from torch import Tensor

from leanbayes.errors import InputError, NonFinite, ShapeMismatch
from leanbayes.metrics import gaussian_crps, gaussian_nll, interval_coverage, rmse, sample_crps


@pytest.fixture
def case() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    mean, noise = (torch.randn(200, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    variance = torch.rand(200, 2, generator=generator, dtype=torch.float64) + 0.1
    return mean, variance, mean + 1.3 * noise


def test_rmse_and_nll_against_scikit_learn_and_scipy(case: tuple[Tensor, Tensor, Tensor]) -> None:
    mean, variance, y = case
    assert rmse(mean, y).item() == pytest.approx(root_mean_squared_error(y.flatten(), mean.flatten()), rel=1e-12)
    expected = -scipy.stats.norm(mean, variance.sqrt()).logpdf(y).mean()
    assert gaussian_nll(mean, variance, y).item() == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(
        gaussian_nll(mean, variance, y), torch.nn.functional.gaussian_nll_loss(mean, y, variance, full=True)
    )


@pytest.mark.parametrize("level", [0.05, 0.5, 0.9, 0.99])
def test_coverage_against_scipy(case: tuple[Tensor, Tensor, Tensor], level: float) -> None:
    mean, variance, y = case
    low, high = scipy.stats.norm(mean, variance.sqrt()).interval(level)
    expected = ((y.numpy() >= low) & (y.numpy() <= high)).mean()
    assert interval_coverage(mean, variance, y, level).item() == pytest.approx(expected, abs=1e-12)


def test_coverage_of_the_true_distribution_is_its_level() -> None:
    y = torch.randn(100_000, generator=torch.Generator().manual_seed(1))
    for level in (0.5, 0.9):
        error = 4 * math.sqrt(level * (1 - level) / 100_000)
        assert abs(interval_coverage(torch.zeros(100_000), torch.ones(100_000), y, level).item() - level) < error


@given(st.floats(-3, 3), st.floats(0.1, 3), st.floats(-5, 5))
@settings(max_examples=25, deadline=None)
def test_crps_of_a_gaussian_is_its_integral(mean: float, deviation: float, y: float) -> None:
    law = scipy.stats.norm(mean, deviation)
    below, _ = quad(lambda x: law.cdf(x) ** 2, min(mean, y) - 12 * deviation, y, limit=200)
    above, _ = quad(lambda x: law.sf(x) ** 2, y, max(mean, y) + 12 * deviation, limit=200)
    args = (torch.tensor([value], dtype=torch.float64) for value in (mean, deviation**2, y))
    assert gaussian_crps(*args).item() == pytest.approx(below + above, abs=1e-6)


@given(st.lists(st.floats(-4, 4, width=32), min_size=1, max_size=9), st.floats(-5, 5, width=32))
@settings(max_examples=40, deadline=None)
def test_crps_of_draws_by_pairs_and_as_an_integral(draws: list[float], y: float) -> None:
    result = sample_crps(torch.tensor(draws, dtype=torch.float64)[:, None], torch.tensor([y], dtype=torch.float64))
    pairs = np.mean([abs(a - b) for a in draws for b in draws])
    assert result.item() == pytest.approx(np.mean(np.abs(np.array(draws) - y)) - pairs / 2, abs=1e-10)
    knots = np.unique([*draws, y])
    middles = (knots[1:] + knots[:-1]) / 2
    steps = np.array([(np.mean(np.array(draws) <= x) - (x >= y)) ** 2 for x in middles])
    assert result.item() == pytest.approx((steps * np.diff(knots)).sum() if len(knots) > 1 else 0, abs=1e-10)


def test_crps_of_many_draws_tends_to_the_gaussian_one(case: tuple[Tensor, Tensor, Tensor]) -> None:
    mean, variance, y = case
    noise = torch.randn(4000, 200, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    result = sample_crps(mean + variance.sqrt() * noise, y)
    assert result.item() == pytest.approx(gaussian_crps(mean, variance, y).item(), rel=5e-3)


def test_the_truth_scores_best_on_average() -> None:
    y = torch.randn(20_000, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    zero, one = torch.zeros_like(y), torch.ones_like(y)
    for score in (gaussian_nll, gaussian_crps):
        for factor in (0.25, 4.0):
            assert score(zero, one, y) < score(zero, factor * one, y)
        assert score(zero, one, y) < score(zero + 0.3, one, y)


def test_half_precision_is_scored_in_float32() -> None:
    mean, y = torch.tensor([1.0, 2.0]).bfloat16(), torch.tensor([1.0, 4.0])
    assert rmse(mean, y).dtype == torch.float32
    assert gaussian_nll(mean, torch.ones(2).bfloat16(), y).item() == pytest.approx(1.0 + 0.5 * math.log(2 * math.pi))


def test_what_cannot_be_scored_is_named() -> None:
    one = torch.ones(3)
    with pytest.raises(ShapeMismatch, match=r"\(3, 1\)"):
        rmse(one[:, None], one)
    with pytest.raises(ShapeMismatch, match="variance"):
        gaussian_nll(one, one[:1], one)
    with pytest.raises(InputError, match="positive"):
        gaussian_crps(one, 0 * one, one)
    with pytest.raises(NonFinite, match="targets"):
        rmse(one, one * math.nan)
    with pytest.raises(NonFinite, match="mean"):
        rmse(one * math.inf, one)
    with pytest.raises(NonFinite, match="samples"):
        sample_crps(torch.stack([one, one * math.nan]), one)
    with pytest.raises(InputError, match="no examples"):
        rmse(one[:0], one[:0])
    with pytest.raises(InputError, match="level"):
        interval_coverage(one, one, one, level=90)
    with pytest.raises(ShapeMismatch, match="at least one"):
        sample_crps(torch.ones(0, 3), one)
