"""Moments of functions of a Gaussian number, against fine integrals."""

import math

import pytest
import torch
import torch.nn.functional as F

from leanbayes.propagate.moments.gaussian import exponential_below, hermite_nodes, integrate, taylor


@pytest.mark.parametrize(("function", "sigma", "error"), [
    (F.gelu, 1.0, 1e-3), (F.silu, 1.0, 1e-3), (torch.tanh, 1.0, 1e-3), (torch.sigmoid, 1.0, 1e-3),
    (F.softplus, 1.0, 1e-3), (F.hardswish, 1.0, 2e-2), (F.gelu, 3.0, 5e-2),
    (torch.tanh, 3.0, 6e-2), (F.silu, 3.0, 1e-2), (F.mish, 1.0, 1e-3), (F.logsigmoid, 1.0, 1e-3),
])  # fmt: skip
def test_the_stated_error_of_quadrature(function, sigma: float, error: float) -> None:
    mean = torch.linspace(-6, 6, 49, dtype=torch.float64)
    shift, variance = integrate(function, mean, torch.full_like(mean, sigma**2))
    z = torch.linspace(-10, 10, 4001, dtype=torch.float64)[:, None]
    weight = torch.exp(-z.square() / 2)
    weight = weight / weight.sum()
    value = function(mean + sigma * z)
    first = (weight * value).sum(0)
    deviation = (weight * (value - first).square()).sum(0).sqrt()
    assert (function(mean) + shift - first).abs().max() < error
    assert (variance.sqrt() - deviation).abs().max() < error


def test_quadrature_is_exact_for_polynomials() -> None:
    mean, variance = torch.tensor([0.5, -1.0]).double(), torch.tensor([0.3, 0.7]).double()
    shift, spread = integrate(lambda z: z**3, mean, variance)
    torch.testing.assert_close(shift, 3 * mean * variance)
    torch.testing.assert_close(spread, 9 * mean**4 * variance + 36 * mean**2 * variance**2 + 15 * variance**3)
    nodes, weights = hermite_nodes()
    assert math.isclose(sum(w * n**2 for n, w in zip(nodes, weights, strict=True)), 1, rel_tol=1e-12)


def test_the_exponential_part_of_elu() -> None:
    mean, sigma = torch.tensor([-1.0, 0.2, 2.0]).double(), 0.8
    first, second = exponential_below(mean, torch.full_like(mean, sigma**2), 1.5)
    z = torch.linspace(-10, 10, 40_001, dtype=torch.float64)[:, None]
    weight = torch.exp(-z.square() / 2)
    weight = weight / weight.sum()
    value = torch.expm1(1.5 * (mean + sigma * z)).clamp_max(0)
    torch.testing.assert_close(first, (weight * value).sum(0), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(second, (weight * value.square()).sum(0), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("tracked", [True, False])
def test_first_order_has_gradients_where_they_are_recorded(tracked: bool) -> None:
    mean, variance = torch.randn(4).double().requires_grad_(tracked), torch.rand(4).double().requires_grad_(tracked)
    value, spread = taylor(torch.tanh, mean, variance)
    torch.testing.assert_close(spread, (1 - torch.tanh(mean).square()).square() * variance)
    assert value.requires_grad == spread.requires_grad == tracked


def test_blocks_change_no_number(monkeypatch):
    from leanbayes.propagate.moments import gaussian

    mean, variance = torch.randn(7, 13, dtype=torch.float64), torch.rand(7, 13, dtype=torch.float64)
    whole = gaussian.integrate(torch.tanh, mean, variance)
    monkeypatch.setattr(gaussian, "_BLOCK", 10)
    with torch.no_grad():
        blocks = gaussian.integrate(torch.tanh, mean, variance)
    for one, other in zip(whole, blocks, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
