"""Numpy gives the numbers of the compiled kernels up to rounding."""

import numpy as np
import pytest
import torch

from leanbayes._ops import compiled, normal
from leanbayes.errors import PerformanceWarning

SIZE = 2 * 2**17 + 700  # two whole pieces, a whole block and a part of one
SEED = 2**63 - 12345


def both_ways(monkeypatch, function):
    """What a function gives with numba and without it."""
    fast = function()
    monkeypatch.setattr(compiled, "available", lambda: False)
    return fast, function()


def tensors(count):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(SIZE, generator=generator) for _ in range(count)]


def mean_and_rho():
    mean, rho = tensors(2)
    rho = 6 * rho - 4
    rho[:4] = torch.tensor([-80.0, -17.5, 0.0, 60.0])
    return mean, rho


def assert_equal(ours, theirs, rtol=2e-6, atol=2e-6):
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)


def test_fill(monkeypatch):
    fast, slow = both_ways(monkeypatch, lambda: normal.fill(torch.empty(SIZE), SEED))
    assert_equal(slow, fast)
    assert slow.std().item() == pytest.approx(1.0, abs=0.01)


def test_shift_and_scale(monkeypatch):
    a, b = tensors(2)
    fast, slow = both_ways(monkeypatch, lambda: (normal.shift(a, b, SEED), normal.scale(a, SEED)))
    assert_equal(slow, fast, atol=1e-5)


@pytest.mark.parametrize("slope", [True, False])
@pytest.mark.parametrize("reuse", [True, False])
def test_spread(monkeypatch, slope, reuse):
    mean, variance = tensors(2)
    variance = variance.square()
    variance[:3] = torch.tensor([0.0, -1e-7, 4.0])

    def function():
        return normal.spread(mean.clone(), variance.clone(), SEED, slope, reuse)

    fast, slow = both_ways(monkeypatch, function)
    assert_equal(slow[0], fast[0], atol=1e-5)
    assert_equal(slow[1], fast[1], rtol=1e-5, atol=1e-5)
    if slope:
        assert slow[1][0] == slow[1][1] == 0


def test_draw_and_its_gradients(monkeypatch):
    mean, rho = mean_and_rho()
    gradient, of_sums = tensors(3)[2], torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)

    def function():
        return *normal.draw(mean, rho, SEED), *normal.pull_back(gradient, of_sums, mean, rho, SEED)

    fast, slow = both_ways(monkeypatch, function)
    for ours, theirs in zip(slow, fast, strict=True):
        assert_equal(ours, theirs, rtol=1e-5, atol=1e-4)  # weights reach 60, and scales 60 times the noise


@pytest.mark.parametrize("shape", [1.01, 4.5, 499.5])
def test_normal_and_gamma(monkeypatch, shape):
    law = (shape, 0.5, 0.0, 1 / shape)
    fast, slow = both_ways(monkeypatch, lambda: normal.normal_and_gamma((SIZE,), law, SEED))
    for ours, theirs in zip(slow, fast, strict=True):
        # A trial whose test is a tie up to rounding may end on either side: none or one in a million.
        assert (torch.isclose(ours, theirs, rtol=1e-5, atol=1e-5)).float().mean() > 1 - 1e-5
    assert slow[1].mean().item() == pytest.approx(1.0, abs=5 / np.sqrt(shape * SIZE))


def test_infinite_numbers_pass_without_a_warning(monkeypatch):
    monkeypatch.setattr(compiled, "available", lambda: False)
    out = normal.shift(torch.full((SIZE,), torch.inf), torch.full((SIZE,), torch.inf), SEED)
    assert out.isnan().any()


def test_the_warning_has_a_category_of_its_own():
    assert issubclass(PerformanceWarning, UserWarning)
