"""Numbers that torch does not draw or compute by itself: fast Gamma noise, and the exponential integral."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from leanbayes._ops import normal as ops
from leanbayes._ops.normal import has_kernel, seed_of
from leanbayes.posteriors._noise import standard_normal

__all__ = [
    "digamma", "exponential", "log_scaled_exponential_integral", "normal_and_gamma", "polygamma", "standard_gamma",
]  # fmt: skip

_LARGE = 2**15  # numbers from which drawing them all at once is faster
_KERNEL = 2**12  # numbers from which a kernel is faster
_EULER = 0.57721566490153286061


def standard_gamma(shape: float, size: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw Gamma(shape, 1), never 0, with the dtype and device of ``like``; half precision is drawn in float32 first.

    >>> standard_gamma(2.0, (3,), torch.zeros(1), torch.Generator().manual_seed(0)).shape
    torch.Size([3])
    """
    if like.dtype.itemsize < 4:
        return standard_gamma(shape, size, like.detach().float(), generator).to(like.dtype)
    with torch.no_grad():
        if shape > 1 and math.prod(size) >= _LARGE:
            return _marsaglia_tsang(shape, size, like, generator)
        drawn = torch._standard_gamma(torch.full(tuple(size), shape, dtype=like.dtype, device=like.device), generator)
        return drawn.clamp_min_(torch.finfo(like.dtype).tiny)


def normal_and_gamma(
    law: tuple[float, float, float, float], like: Tensor, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Draw az and bz² + cγ with z ~ N(0, 1) and γ ~ Gamma(k) for a law (k, a, b, c); k = 0 has no γ."""
    k, a, b, c = law
    with torch.no_grad():
        if k > 1 and has_kernel(like, like.numel(), _KERNEL):
            return ops.normal_and_gamma(like.shape, law, seed_of(generator))
        z = standard_normal(like.shape, like, generator)
        square = z.square().mul_(b)
        if k > 0:
            square.add_(standard_gamma(k, like.shape, like, generator), alpha=c)
        return z.mul_(a), square


def _marsaglia_tsang(shape: float, size: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw as Marsaglia and Tsang (2000), all numbers at once: d(1 + cx)³, refused if u < 1 − e^h(x), which is rare.

    torch draws such numbers one by one on one core, which takes some twenty times as long as Normal numbers. With
    y = cx, −h = Σ_{k≥4} (−y)^k/k · 3d ≤ x⁴/54d for |y| ≤ ½, so one random byte decides nearly all of them: u is
    (byte + another u)/256.
    """
    d = shape - 1 / 3
    bound = (
        1 / (54 * d) if d > 11 else 0.0331
    )  # .0331 is their bound for all x; beyond |y| = ½ the other one is above 1
    x = standard_normal(size, like, generator).flatten()
    bits = torch.empty(-(-x.numel() // 8), dtype=torch.int64, device=like.device)
    bytes_ = bits.random_(-(2**63), None, generator=generator).view(torch.uint8)[: x.numel()]
    doubtful = (bytes_ < (256 * bound) * x.square().square_()).nonzero().flatten()
    tried = x[doubtful].double()
    u = torch.rand(doubtful.shape, dtype=torch.float64, device=like.device, generator=generator)
    u = (u + bytes_[doubtful]) / 256
    cube = (1 + tried / (9 * d) ** 0.5).pow(3)
    accepted = u >= -torch.expm1(0.5 * tried.square() + d * (1 - cube + cube.log()))  # never for NaN, below 0
    refused = doubtful[~accepted]
    drawn = x.div_((9 * d) ** 0.5).add_(1).pow_(3).mul_(d)
    again = torch.full(refused.shape, shape, dtype=like.dtype, device=like.device)
    drawn[refused] = torch._standard_gamma(again, generator)
    return drawn.view(tuple(size))


def exponential(size: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw Exponential(1) noise, never 0."""
    drawn = torch.empty(tuple(size), dtype=like.dtype, device=like.device).exponential_(generator=generator)
    return drawn.clamp_min(torch.finfo(like.dtype).tiny)


def digamma(x: float) -> float:
    """Return the digamma function ψ(x).

    >>> round(digamma(1.0), 6)
    -0.577216
    """
    return float(torch.special.digamma(torch.tensor(x, dtype=torch.float64)))


def polygamma(order: int, x: float) -> float:
    """Return the polygamma function ψ⁽ⁿ⁾(x)."""
    return float(torch.special.polygamma(order, torch.tensor(x, dtype=torch.float64)))


def log_scaled_exponential_integral(y: Tensor) -> Tensor:
    """Return log(e^y E₁(y)) for y > 0, which can be differentiated any number of times.

    >>> log_scaled_exponential_integral(torch.tensor(1.0))
    tensor(-0.5169)
    """
    result: Tensor = _LogScaledIntegral.apply(y)
    return result


class _LogScaledIntegral(torch.autograd.Function):
    """d/dy log(e^y E₁(y)) = 1 − 1/(y e^y E₁(y))."""

    generate_vmap_rule = True

    @staticmethod
    def forward(y: Tensor) -> Tensor:
        """Use a series up to 2 and a continued fraction beyond (Abramowitz and Stegun 5.1.11 and 5.1.22)."""
        small, large = y.clamp_max(2.0), y.clamp_min(2.0)
        series = -_EULER - small.log()
        term = torch.ones_like(small)
        for k in range(1, 33):
            term = term * -small / k
            series = series - term / k
        fraction = large + 121  # from the inside out: y + 2n + 1 − (n + 1)²/(…)
        for n in range(60, 0, -1):
            fraction = large + (2 * n - 1) - n * n / fraction
        return torch.where(y <= 2, small + series.log(), -fraction.log())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG004
        """Save the argument."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Express the derivative by the function itself, so that it can be differentiated again."""
        y: Tensor
        (y,) = ctx.saved_tensors
        return gradient * (1 - (-log_scaled_exponential_integral(y)).exp() / y)
