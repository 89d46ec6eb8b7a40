"""Mean and variance of a function of a Gaussian number: closed forms, quadrature, and first-order Taylor series."""

import functools
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from leanbayes._ops.low_rank import root as root_of

__all__ = ["clipped", "exponential_below", "hermite_nodes", "integrate", "rectified", "taylor"]

_FARTHEST = 38.0  # standard deviations, beyond which a tail is 0 in float64
_NODES = 13
_BLOCK = 2**15  # numbers that are integrated at a time
Function = Callable[[Tensor], Tensor]


def rectified(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for relu(z), E − relu(mean), the variance, and P(z > 0), which is also Cov(z, relu(z)) / variance.

    The formulas use a = |mean|/σ and relu(z) = z + relu(−z), so that no large terms cancel.

    >>> [round(part.item(), 3) for part in rectified(torch.zeros(()), torch.ones(()))]
    [0.399, 0.341, 0.5]
    """
    root = root_of(variance)
    distance = _distance(mean, torch.where(variance > 0, root, 1))
    tail, first, second = _tails(distance)
    below = (second - first.square()).clamp_min(0)
    rise = (mean > 0) * (1 - 2 * tail)
    return root * first, variance * (rise + below), rise + tail


def clipped(mean: Tensor, variance: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Return, for min(max(z, low), high), E − clip(mean) and the variance.

    >>> [round(part.item(), 3) for part in clipped(torch.zeros(()), torch.ones(()), -1.0, 1.0)]
    [0.0, 0.516]
    """
    root = root_of(variance)
    scale = torch.where(variance > 0, root, 1)
    above = mean > high
    mirrored = torch.where(above, -mean, mean)  # z above the upper end is −z below the lower end
    near = torch.where(above, torch.full_like(mean, -high), torch.full_like(mean, low))
    far = torch.where(above, torch.full_like(mean, -low), torch.full_like(mean, high))
    outside = mirrored < near
    a, b = _distance(near - mirrored, scale), _distance(far - mirrored, scale)
    _, first_a, second_a = _tails(a)
    _, first_b, second_b = _tails(b)
    first = first_a - first_b
    between = 1 - second_a - 2 * a * first_a - second_b - 2 * b * first_b
    second = torch.where(outside, second_a - second_b - 2 * (b - a) * first_b, between)
    spread = (second - first.square()).clamp_min(0)
    return root * torch.where(above, -first, first), variance * spread


def exponential_below(mean: Tensor, variance: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    """Return the first and second moment of min(exp(rate·z) − 1, 0), for ELU and its kin.

    Large terms cancel, so the arguments should be in float64.
    """
    root = root_of(variance)
    scale = torch.where(variance > 0, root, 1)

    def below(times: int) -> Tensor:
        """Return E[exp(times·rate·z); z < 0]."""
        c = times * rate
        tail = torch.special.log_ndtr(-(mean + c * variance) / scale)
        return torch.exp((c * mean + c * c * variance / 2 + tail).clamp_max(0))

    none, one, two = below(0), below(1), below(2)
    return one - none, two - 2 * one + none


def integrate(function: Function, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return E f(z) − f(mean) and Var f(z) by Gauss-Hermite quadrature, which is exact for polynomials of degree 12.

    For smooth activations the mean and the standard deviation are within 1e-3 up to σ = 1, and within 0.06 at σ = 3.
    """
    in_one_row = mean.is_contiguous() and variance.is_contiguous() and mean.shape == variance.shape
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or not in_one_row or mean.numel() <= _BLOCK:
        return _integrate(function, mean, variance)
    first, second = torch.empty_like(mean), torch.empty_like(mean)
    rows = (part.view(-1).split(_BLOCK) for part in (mean, variance, first, second))
    for m, v, out_first, out_second in zip(*rows, strict=True):  # what a block needs stays in the cache
        shift, spread = _integrate(function, m, v)
        out_first.copy_(shift)
        out_second.copy_(spread)
    return first, second


def _integrate(function: Function, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    root = root_of(variance)
    centre = function(mean)
    nodes, weights = hermite_nodes()
    first, second = torch.zeros_like(mean), torch.zeros_like(mean)
    for node, weight in zip(nodes, weights, strict=True):
        away = function(torch.add(mean, root, alpha=node)) - centre
        first = torch.add(first, away, alpha=weight)
        second = torch.addcmul(second, away, away, value=weight)
    return first, (second - first.square()).clamp_min(0)


def taylor(function: Function, mean: Tensor, variance: Tensor, twice: Function | None = None) -> tuple[Tensor, Tensor]:
    """Return f(mean) and f'(mean)²·variance (VDP++, eq. 4 and 5).

    Training differentiates the slope f' again. ``twice`` is the same function in operations that allow this, where
    torch cannot differentiate its own twice.

    >>> taylor(torch.relu, torch.zeros(1), torch.ones(1))
    (tensor([0.]), tensor([0.]))
    """
    tracked = torch.is_grad_enabled() and mean.requires_grad
    with torch.inference_mode(False), torch.enable_grad():
        point = mean if tracked else mean.detach().clone().requires_grad_()
        value = (twice or function)(point)
        (slope,) = torch.autograd.grad(value, point, torch.ones_like(value), create_graph=tracked)
    return function(mean), slope.square() * variance


def _distance(difference: Tensor, scale: Tensor) -> Tensor:
    """Return |d|/σ, bounded where tails end. The bound comes before the division: no gradient is 0 times infinity."""
    return torch.minimum(difference.abs(), _FARTHEST * scale) / scale


def _tails(distance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return P(z > d), E max(z − d, 0) and E max(z − d, 0)² for a standard normal z."""
    tail = torch.special.ndtr(-distance)
    density = torch.exp(-distance.square() / 2) / math.sqrt(2 * math.pi)
    first = (density - distance * tail).clamp_min(0)
    second = (tail - distance * first).clamp_min(0)
    return tail, first, second


@functools.cache
def hermite_nodes() -> tuple[list[float], list[float]]:
    """Return nodes and weights for a standard normal number, without the node 0, whose term is 0."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    pairs = [(n, w / math.sqrt(2 * math.pi)) for n, w in zip(nodes.tolist(), weights.tolist(), strict=True)]
    away = [(n, w) for n, w in pairs if abs(n) > 1e-9]
    return [n for n, _ in away], [w for _, w in away]
