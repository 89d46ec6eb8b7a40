"""What the tests hold the library against: standard errors, explicit loops, and dense algebra in float64."""

import math
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def mean_within_standard_errors(draws: Tensor, expected: Tensor | float, *, errors: float = 5.0) -> None:
    """The mean over the first axis is ``expected``, up to ``errors`` of its own standard errors, entry by entry.

    Where the draws do not vary at all they must be ``expected`` to float64 precision.
    """
    draws = draws.detach().double()
    assert len(draws) > 1, "a standard error needs at least two draws"
    _within(draws.mean(0), draws.std(0), len(draws), expected, errors)


def moments_within_standard_errors(
    draws: Tensor, mean: Tensor | float, variance: Tensor | float, *, errors: float = 5.0
) -> None:
    """Mean and variance over the first axis, up to ``errors`` standard errors each."""
    mean = torch.as_tensor(mean, dtype=torch.float64)
    mean_within_standard_errors(draws, mean, errors=errors)
    mean_within_standard_errors((draws.double() - mean).square(), variance, errors=errors)


def covariance_within_standard_errors(draws: Tensor, mean: Tensor, covariance: Tensor, *, errors: float = 5.0) -> None:
    """The covariance matrix of the flattened draws, up to ``errors`` standard errors, entry by entry."""
    centred, n = (draws.detach().double() - mean.detach()).flatten(1), len(draws)
    result = centred.T @ centred / n
    second = centred.square().T @ centred.square() / n  # E[(zᵢzⱼ)²], for the spread of the products
    _within(result, (second - result.square()).clamp_min(0).sqrt(), n, covariance, errors)


def _within(result: Tensor, spread: Tensor, n: int, expected: Tensor | float, errors: float) -> None:
    assert torch.isfinite(result).all(), "some draws are not finite"
    expected = torch.as_tensor(expected, dtype=torch.float64).detach().expand(result.shape)
    allowed = errors * spread / math.sqrt(n) + 1e-10 * (1 + expected.abs())  # the second part is for rounding
    off = (result - expected).abs()
    worst = int((off / allowed).argmax())
    assert (off <= allowed).all(), (
        f"entry {worst} of {off.numel()}: the mean of {n} draws is {result.flatten()[worst]:.6g}, "
        f"expected {expected.flatten()[worst]:.6g}, allowed ±{allowed.flatten()[worst]:.3g}"
    )


def normal_kl(mean: Tensor, scale: Tensor, prior_mean: Any, prior_scale: Any) -> Tensor:
    """Σ KL(N(μ, σ²)‖N(m, s²)) in float64, coordinate by coordinate."""
    mean, scale = mean.double(), scale.double()
    m = torch.as_tensor(prior_mean, dtype=torch.float64)
    s = torch.as_tensor(prior_scale, dtype=torch.float64)
    return (torch.log(s / scale) + (scale**2 + (mean - m) ** 2) / (2 * s**2) - 0.5).sum()


def gradient_magnitudes(model: nn.Module, scalars: Iterable[Callable[[], Tensor]], power: int) -> dict[str, Tensor]:
    """Σ |∂s/∂θ|^power over scalars s, by one autograd call each, for every trainable parameter."""
    params = {name: p for name, p in model.named_parameters() if p.requires_grad}
    totals = {name: torch.zeros_like(p) for name, p in params.items()}
    for scalar in scalars:
        gradients = torch.autograd.grad(scalar(), list(params.values()), allow_unused=True)
        for total, gradient in zip(totals.values(), gradients, strict=True):
            if gradient is not None:
                total += gradient.abs() ** power
    return totals


@contextmanager
def in_double() -> Any:
    """Tensors and modules made inside are float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def assert_close(actual: dict[str, Tensor], expected: dict[str, Tensor], rtol: float = 1e-10) -> None:
    """The same names in the same order, and the same numbers to ``rtol`` of the largest in each tensor."""
    assert list(actual) == list(expected)
    for name, wanted in expected.items():
        torch.testing.assert_close(
            actual[name],
            wanted,
            rtol=rtol,
            atol=rtol * float(wanted.abs().max()),
            msg=lambda m, name=name: f"{name}: {m}",
        )
