"""Functions of one number: the exact moments of a Gaussian where a closed form exists, else quadrature; or Taylor."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes._ops.moments import rectify, rectify_and_sum
from leanbayes._ops.safe_sqrt import SafeSqrt
from leanbayes.propagate.linear_ops import Operation
from leanbayes.propagate.moments.gaussian import clipped, exponential_below, integrate, rectified, taylor
from leanbayes.propagate.moments.shared import full_fraction, mix
from leanbayes.propagate.moments.tensor import RULES, Averages, MomentTensor, only_first, parts_of
from leanbayes.propagate.moments.ties import after_activation

__all__ = ["absolute", "celu", "clamp", "elu", "exponential", "hardsigmoid", "leaky", "prelu", "relu", "selu", "smooth"]

GAUSSIAN = "a Gaussian input"
Function = Callable[[Tensor], Tensor]
Moments = tuple[Tensor, Tensor]


def _apply(x: MomentTensor, function: Function, gaussian: Callable[[Tensor, Tensor], Moments]) -> MomentTensor:
    """By Taylor, or as ``gaussian`` says: it gives E f(z) - f(mean) and the variance."""
    if x.setting.order == "taylor":
        mean, variance = taylor(function, x.expected, x.variance)
    else:
        shift, variance = gaussian(x.expected, x.variance)
        mean = function(x.expected) + shift
    if x.shared is None and x.ties is None:
        return x.like(mean, variance)

    def covariance(pick: Function) -> Tensor:
        """σ² E f'(z) by two nodes."""
        centre, root = pick(x.expected), SafeSqrt.apply(pick(x.variance))
        apart: Tensor = (function(centre + root) - function(centre - root)) / 2 * root
        return apart

    return after_activation(x, covariance, mean, variance)


@RULES.rule(F.relu, torch.relu, Tensor.relu, exact=True, assumes=GAUSSIAN)
def relu(operation: Operation, input: Any) -> MomentTensor:
    """max(z, 0)."""
    if input.setting.order == "gaussian" and (swept := rectify_and_sum(input.expected, input.variance)) is not None:
        mean, variance, sums = swept
        count = mean.shape[2] * mean.shape[3]
        *averages, average = (part[..., None, None] / count for part in sums.unbind(1))
        return after_activation(input, lambda _: average, mean, variance, Averages(*averages))
    found = rectify(input.expected, input.variance, input.remake) if input.setting.order == "gaussian" else None
    if found is None and input.setting.order == "gaussian":
        shift, variance = rectified(input.expected, input.variance)[:2]
        found = operation(input.expected) + shift, variance
    if found is None:
        return _apply(input, operation, lambda mean, variance: rectified(mean, variance)[:2])
    mean, variance = found

    def covariance(pick: Function) -> Tensor:
        """Var z·P(z > 0), from E z·relu(z) = E relu(z)²."""
        return pick(variance) + pick(mean) * (pick(mean) - pick(input.expected))

    return after_activation(input, covariance, mean, variance)


@RULES.rule(F.leaky_relu, torch._C._nn.leaky_relu, exact=True, assumes=GAUSSIAN)
def leaky(operation: Operation, input: Any, negative_slope: float = 0.01) -> MomentTensor:
    """s·z + (1-s)·relu(z)."""
    return _apply(input, lambda z: operation(z, negative_slope), _two_slopes(negative_slope))


@RULES.rule(torch.abs, Tensor.abs, torch.absolute, Tensor.absolute, exact=True, assumes=GAUSSIAN)
def absolute(operation: Operation, input: Any) -> MomentTensor:
    """|z| = 2·relu(z) - z."""
    return _apply(input, operation, _two_slopes(-1.0))


def _two_slopes(slope: Any) -> Callable[[Tensor, Tensor], Moments]:
    def moments(mean: Tensor, variance: Tensor) -> Moments:
        shift, spread, inside = rectified(mean, variance)
        bend = 1 - slope
        return bend * shift, slope**2 * variance + bend**2 * spread + 2 * slope * bend * inside * variance

    return moments


@RULES.rule(torch.prelu, Tensor.prelu, exact=True, assumes=GAUSSIAN + "; slopes independent of it")
def prelu(operation: Operation, input: Any, weight: Any) -> MomentTensor:
    """relu(z) - w·relu(-z): Var = Var at the mean slope + σ_w² E relu(-z)²."""
    w, w_variance, _ = parts_of(weight)
    x = input if isinstance(input, MomentTensor) else weight.like(input, torch.zeros_like(input))
    shape = [-1] + [1] * (x.dim() - 2) if w.numel() > 1 else [1] * x.dim()
    found = _apply(x, lambda z: operation(z, w), _two_slopes(w.view(shape)))
    if w_variance is None:
        return found
    shift, spread, _ = rectified(-x.expected, x.variance)
    added = w_variance.view(shape) * (spread + (F.relu(-x.expected) + shift).square())
    common = None if x.setting.positions == "independent" else full_fraction(w_variance.view(shape), x.shape)
    return x.like(found.expected, found.variance + added, mix([(found.variance, x.shared), (added, common)], x.shape))


@RULES.rule(torch.clamp, Tensor.clamp, torch.clip, Tensor.clip, F.hardtanh, F.relu6, exact=True, assumes=GAUSSIAN)
def clamp(operation: Operation, input: Any, *args: Any, **kwargs: Any) -> MomentTensor:
    """min(max(z, low), high)."""
    x = only_first(operation, (input, *args, *kwargs.values()))
    usual: tuple[Any, Any] = {F.relu6: (0.0, 6.0), F.hardtanh: (-1.0, 1.0)}.get(operation, (None, None))
    low, high = (*args, *usual[len(args) :])
    low, high = kwargs.get("min", kwargs.get("min_val", low)), kwargs.get("max", kwargs.get("max_val", high))
    ends = (-math.inf if low is None else float(low), math.inf if high is None else float(high))
    return _apply(x, lambda z: operation(z, *args, **kwargs), lambda m, v: clipped(m, v, *ends))


@RULES.rule(F.hardsigmoid, torch._C._nn.hardsigmoid, exact=True, assumes=GAUSSIAN)
def hardsigmoid(operation: Operation, input: Any) -> MomentTensor:
    """relu6(z + 3) / 6."""

    def moments(mean: Tensor, variance: Tensor) -> Moments:
        shift, spread = clipped(mean, variance, -3.0, 3.0)
        return shift / 6, spread / 36

    return _apply(input, operation, moments)


@RULES.rule(F.elu, torch._C._nn.elu, exact=True, assumes=GAUSSIAN)
def elu(operation: Operation, input: Any, alpha: float = 1.0) -> MomentTensor:
    """relu(z) + α·min(eᶻ - 1, 0)."""
    return _apply(input, lambda z: operation(z, alpha), _exponential_unit(1.0, alpha, 1.0))


@RULES.rule(F.celu, torch.celu, exact=True, assumes=GAUSSIAN)
def celu(operation: Operation, input: Any, alpha: float = 1.0) -> MomentTensor:
    """relu(z) + α·min(exp(z/α) - 1, 0)."""
    return _apply(input, lambda z: operation(z, alpha), _exponential_unit(1.0, alpha, 1 / alpha))


@RULES.rule(F.selu, torch.selu, exact=True, assumes=GAUSSIAN)
def selu(operation: Operation, input: Any) -> MomentTensor:
    """ELU with the two constants of self-normalising nets."""
    return _apply(input, operation, _exponential_unit(1.0507009873554805, 1.6732632423543772, 1.0))


def _exponential_unit(scale: float, alpha: float, rate: float) -> Callable[[Tensor, Tensor], Moments]:
    def moments(mean: Tensor, variance: Tensor) -> Moments:
        m, v = mean.double(), variance.double()
        rise, above, _ = rectified(m, v)
        first, second = exponential_below(m, v, rate)
        at_mean = torch.expm1(rate * m.clamp_max(0))
        spread = above + alpha**2 * (second - first.square()) - 2 * alpha * (F.relu(m) + rise) * first
        shift = torch.where(v > 0, rise + alpha * (first - at_mean), 0)
        slope = torch.where(m > 0, 1.0, alpha * rate * (at_mean + 1))
        small = v * rate**2 < 1e-10  # differences of numbers near 1 have no digits left there; first order has
        spread = torch.where(small, slope.square() * v, spread).clamp_min(0)
        return (scale * torch.where(small, 0, shift)).to(mean.dtype), (scale**2 * spread).to(mean.dtype)

    return moments


@RULES.rule(torch.exp, Tensor.exp, torch.expm1, Tensor.expm1, exact=True, assumes=GAUSSIAN)
def exponential(operation: Operation, input: Any) -> MomentTensor:
    """A log-normal number: E = exp(μ + σ²/2), Var = E²·(exp(σ²) - 1)."""

    def moments(mean: Tensor, variance: Tensor) -> Moments:
        return mean.exp() * torch.expm1(variance / 2), (2 * mean + variance).exp() * torch.expm1(variance)

    return _apply(input, operation, moments)


@RULES.rule(
    *(F.gelu, F.silu, F.mish, F.softplus, F.logsigmoid, F.softsign, F.tanhshrink, F.hardswish),
    *(torch.sigmoid, Tensor.sigmoid, torch.special.expit, torch.tanh, Tensor.tanh, F.sigmoid, F.tanh),
    *(torch.erf, Tensor.erf, torch.sin, Tensor.sin, torch.cos, Tensor.cos, torch.atan, Tensor.atan),
    *(torch._C._nn.silu, torch._C._nn.hardswish, torch._C._nn.mish),
    exact=False,
    assumes=GAUSSIAN + "; quadrature with 13 nodes: error below 1e-3 up to σ = 1 (hardswish, which has kinks, 0.02)",
)
def smooth(operation: Operation, input: Any, *args: Any, **kwargs: Any) -> MomentTensor:
    """E f(z) and Var f(z) by Gauss-Hermite quadrature."""
    x = only_first(operation, (input, *args, *kwargs.values()))

    def function(z: Tensor) -> Tensor:
        return operation(z, *args, **kwargs)

    return _apply(x, function, lambda mean, variance: integrate(function, mean, variance))
