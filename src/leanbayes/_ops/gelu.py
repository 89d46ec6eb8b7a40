"""Mean and variance of GELU, f(z) = z·Φ(z), of a Gaussian number z with mean μ and variance v.

With s² = 1 + v and t = μ/s, the mean has a closed form: E f(z) = μΦ(t) + (v/s)φ(t). The variance is the series
Var f(z) = Σ_n vⁿ g_n²/n! over the mean derivatives g_n = E f⁽ⁿ⁾(z), which are those of the mean by μ:
g₁ = Φ(t) + tφ(t)/s², and beyond that g_n = ±φ(t) (He_{n−2}(t) − He_n(t)/s²)/sⁿ⁻¹ with the polynomials of Hermite. All
terms are positive, so nothing cancels, however small v is. Ten terms give the standard deviation to within 4e-5 up to
v = 1 and 6e-3 at v = 9; they fall short there, because what is left out is positive too.

A kernel takes one sweep over memory for large float32 tensors on the CPU; elsewhere torch takes one for each operation.
"""

import math

import torch
from torch import Tensor

from leanbayes._ops.moments import fit, sweep

__all__ = ["TERMS", "add_gelu_moments", "gelu_slope"]

TERMS = 10
_FARTHEST = 13.0  # where φ² is 0 in float32; beyond, the polynomials would overflow


def add_gelu_moments(centre: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return E f(z) and Var f(z), given the centre f(μ) as torch computes it, to which 0 is added where v is 0.

    Without gradients the centre is overwritten if a kernel fits.

    >>> mean, variance = add_gelu_moments(torch.zeros(1), torch.zeros(1), torch.ones(1))
    >>> round(mean.item(), 4), round(variance.item(), 3)  # exactly 1/√4π, and 1/3 + 1/(2π√3) − 1/4π
    (0.2821, 0.346)
    """
    if not torch.is_grad_enabled() and fit(mean, variance, centre):
        spread = torch.empty_like(mean)
        sweep("gelu", [mean, variance, centre, spread], home="gelu_kernels")
        return centre, spread
    v = variance.clamp_min(0)
    size, t, density, below = _standard(mean, v)
    shift = mean * (below - torch.special.ndtr(mean)) + v / size.sqrt() * density
    near = t.clamp(-_FARTHEST, _FARTHEST)
    share, least = v / size, 1 / size
    before, now = torch.ones_like(near), near  # He_{n−2}/√(n−2)! and He_{n−1}/√(n−1)!
    power, series = share, torch.zeros_like(near)
    for n in range(2, TERMS + 1):
        later = (near * now - math.sqrt(n - 1) * before) / math.sqrt(n)
        term = before / math.sqrt(n * (n - 1)) - least * later
        series = series + power * term.square()
        before, now, power = now, later, power * share
    spread = v * ((below + t * density * least).square() + density.square() * series)
    return centre + shift, spread


def gelu_slope(mean: Tensor, variance: Tensor) -> Tensor:
    """Return E f'(z) = Cov(z, f(z))/v.

    >>> gelu_slope(torch.zeros(1), torch.ones(1))
    tensor([0.5000])
    """
    size, t, density, below = _standard(mean, variance.clamp_min(0))
    return below + t * density / size


def _standard(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return s², t, φ(t) and Φ(t)."""
    size = 1 + variance
    t = mean / size.sqrt()
    return size, t, torch.exp(-t.square() / 2) / math.sqrt(2 * math.pi), torch.special.ndtr(t)
