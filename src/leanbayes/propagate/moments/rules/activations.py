"""Functions of single numbers: exact moments of a Gaussian where a closed form exists, and quadrature elsewhere."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes._ops.gelu import add_gelu_moments, gelu_slope
from leanbayes._ops.moments import rectify, rectify_and_sum, sums_positions
from leanbayes.propagate.linear_ops import Operation
from leanbayes.propagate.moments.correlations import Averages, Correlations, Noise
from leanbayes.propagate.moments.gaussian import clipped, exponential_below, integrate, rectified
from leanbayes.propagate.moments.kinds import RULES, apply_elementwise
from leanbayes.propagate.moments.tensor import MomentTensor, expected_of, missing, only_first, variance_of

__all__ = [
    "absolute", "celu", "clamp", "elu", "exponential", "gelu", "hardsigmoid", "hardtanh", "leaky", "power", "prelu",
    "relu", "relu6", "root_of_mean_square", "selu", "smooth",
]  # fmt: skip

GAUSSIAN = "a Gaussian input"
Function = Callable[[Tensor], Tensor]
Moments = tuple[Tensor, Tensor]


@RULES.rule(F.relu, torch.relu, Tensor.relu, exact=True, assumes=GAUSSIAN)
def relu(operation: Operation, input: Any) -> MomentTensor:
    """Compute the moments of max(z, 0), in one sweep over memory where a compiled one exists.

    The rule is elementwise, with a cheaper Cov(z, f(z)).
    """
    if input.setting.order == "taylor":
        return apply_elementwise(input, operation, _unused)
    averages: Averages | None = None
    swept = rectify_and_sum(input.expected, input.variance)
    if swept is not None:
        mean, variance, sums = swept
        count = mean.shape[2] * mean.shape[3]
        *means, mean_covariance = (part[..., None, None] / count for part in sums.unbind(1))
        averages = Averages(*means)
    else:
        moments = rectify(input.expected, input.variance, input.remake)
        if moments is None:
            shift, variance, _ = rectified(input.expected, input.variance)
            moments = operation(input.expected) + shift, variance
        mean, variance = moments
        if input.setting.rank and sums_positions(input.expected, input.variance):
            # The sweep without gradients averages over all positions; grad mode must change no number.
            parts = mean, mean.square(), variance, variance + mean * (mean - input.expected)
            *means, mean_covariance = (part.mean((2, 3), keepdim=True) for part in parts)
            averages = Averages(*means)

    def covariance(pick: Function) -> Tensor:
        """Return Var z·P(z > 0), which follows from E z·relu(z) = E relu(z)²."""
        if averages is not None:
            return mean_covariance
        return pick(variance) + pick(mean) * (pick(mean) - pick(input.expected))

    after = Noise(variance, averages)
    correlations = input.correlations.elementwise(input.noise, after, covariance, input.setting.rank)
    result: MomentTensor = input.like(mean, variance, correlations, averages)
    return result


def _unused(mean: Tensor, variance: Tensor) -> Moments:  # noqa: ARG001
    raise AssertionError("first-order moments come from the slope")


@RULES.elementwise(F.leaky_relu, torch._C._nn.leaky_relu, exact=True, assumes=GAUSSIAN)
def leaky(function: Function, mean: Tensor, variance: Tensor, negative_slope: float = 0.01) -> Moments:
    """Compute the moments of s·z + (1 − s)·relu(z)."""
    return _two_slopes(function, mean, variance, negative_slope)


@RULES.elementwise(torch.abs, Tensor.abs, torch.absolute, Tensor.absolute, exact=True, assumes=GAUSSIAN)
def absolute(function: Function, mean: Tensor, variance: Tensor) -> Moments:
    """Compute the moments of |z| = 2·relu(z) − z."""
    return _two_slopes(function, mean, variance, -1.0)


def _two_slopes(function: Function, mean: Tensor, variance: Tensor, slope: Any) -> Moments:
    shift, spread, inside = rectified(mean, variance)
    bend = 1 - slope
    bent = slope**2 * variance + bend**2 * spread + 2 * slope * bend * inside * variance
    return function(mean) + bend * shift, bent


@RULES.rule(torch.prelu, Tensor.prelu, exact=True, assumes=GAUSSIAN + "; slopes independent of it")
def prelu(operation: Operation, input: Any, weight: Any) -> MomentTensor:
    """Compute the moments of relu(z) − w·relu(−z): the variance at the mean slope, plus σ_w² E relu(−z)²."""
    w, w_variance = expected_of(weight), variance_of(weight)
    x = input if isinstance(input, MomentTensor) else weight.like(input, torch.zeros_like(input))
    slopes = w.view([-1] + [1] * (x.dim() - 2) if w.numel() > 1 else [1] * x.dim())

    def function(z: Tensor) -> Tensor:
        return operation(z, w)

    at_mean_slope = apply_elementwise(x, function, lambda mean, variance: _two_slopes(function, mean, variance, slopes))
    if w_variance is None:
        return at_mean_slope
    shift, spread, _ = rectified(-x.expected, x.variance)
    of_slopes = w_variance.view(slopes.shape)
    added = of_slopes * (spread + (F.relu(-x.expected) + shift).square())
    parts = [
        (at_mean_slope.variance, x.correlations.positions),
        (added, Correlations().broadcast(of_slopes, x.shape, x.setting)),
    ]
    return x.like(at_mean_slope.expected, at_mean_slope.variance + added, Correlations.mixed(parts, x.shape))


@RULES.elementwise(torch.clamp, Tensor.clamp, torch.clip, Tensor.clip, exact=True, assumes=GAUSSIAN)
def clamp(function: Function, mean: Tensor, variance: Tensor, min: Any = None, max: Any = None) -> Moments:
    """Compute the moments of min(max(z, low), high)."""
    low, high = -math.inf if min is None else float(min), math.inf if max is None else float(max)
    return _clipped(function, mean, variance, low, high)


@RULES.elementwise(F.hardtanh, exact=True, assumes=GAUSSIAN)
def hardtanh(
    function: Function, mean: Tensor, variance: Tensor, min_val: float = -1.0, max_val: float = 1.0
) -> Moments:
    """Compute the moments of min(max(z, low), high)."""
    return _clipped(function, mean, variance, float(min_val), float(max_val))


@RULES.elementwise(F.relu6, exact=True, assumes=GAUSSIAN)
def relu6(function: Function, mean: Tensor, variance: Tensor) -> Moments:
    """Compute the moments of min(max(z, 0), 6)."""
    return _clipped(function, mean, variance, 0.0, 6.0)


def _clipped(function: Function, mean: Tensor, variance: Tensor, low: float, high: float) -> Moments:
    shift, spread = clipped(mean, variance, low, high)
    return function(mean) + shift, spread


@RULES.elementwise(
    *(F.hardsigmoid, torch._C._nn.hardsigmoid), exact=True, assumes=GAUSSIAN, twice=lambda z: F.relu6(z + 3) / 6
)
def hardsigmoid(function: Function, mean: Tensor, variance: Tensor) -> Moments:
    """Compute the moments of relu6(z + 3) / 6."""
    shift, spread = clipped(mean, variance, -3.0, 3.0)
    return function(mean) + shift / 6, spread / 36


@RULES.elementwise(F.elu, torch._C._nn.elu, exact=True, assumes=GAUSSIAN)
def elu(function: Function, mean: Tensor, variance: Tensor, alpha: float = 1.0) -> Moments:
    """Compute the moments of relu(z) + α·min(eᶻ − 1, 0)."""
    return _exponential_unit(function, mean, variance, 1.0, alpha, 1.0)


@RULES.elementwise(F.celu, torch.celu, exact=True, assumes=GAUSSIAN)
def celu(function: Function, mean: Tensor, variance: Tensor, alpha: float = 1.0) -> Moments:
    """Compute the moments of relu(z) + α·min(exp(z/α) − 1, 0)."""
    return _exponential_unit(function, mean, variance, 1.0, alpha, 1 / alpha)


@RULES.elementwise(F.selu, torch.selu, exact=True, assumes=GAUSSIAN)
def selu(function: Function, mean: Tensor, variance: Tensor) -> Moments:
    """Compute the moments of ELU with the two constants of self-normalising networks."""
    return _exponential_unit(function, mean, variance, 1.0507009873554805, 1.6732632423543772, 1.0)


def _exponential_unit(
    function: Function, mean: Tensor, variance: Tensor, scale: float, alpha: float, rate: float
) -> Moments:
    m, v = mean.double(), variance.double()
    rise, above, _ = rectified(m, v)
    first, second = exponential_below(m, v, rate)
    at_mean = torch.expm1(rate * m.clamp_max(0))
    spread = above + alpha**2 * (second - first.square()) - 2 * alpha * (F.relu(m) + rise) * first
    shift = torch.where(v > 0, rise + alpha * (first - at_mean), 0)
    slope = torch.where(m > 0, 1.0, alpha * rate * (at_mean + 1))
    small = v * rate**2 < 1e-10  # differences of numbers near 1 have no digits left there; the first order has
    spread = torch.where(small, slope.square() * v, spread).clamp_min(0)
    shift = (scale * torch.where(small, 0, shift)).to(mean.dtype)
    return function(mean) + shift, (scale**2 * spread).to(mean.dtype)


@RULES.elementwise(torch.exp, Tensor.exp, torch.expm1, Tensor.expm1, exact=True, assumes=GAUSSIAN)
def exponential(function: Function, mean: Tensor, variance: Tensor) -> Moments:
    """Compute the moments of a log-normal number: E = exp(μ + σ²/2), Var = E²·(exp(σ²) − 1)."""
    shift = mean.exp() * torch.expm1(variance / 2)
    return function(mean) + shift, (2 * mean + variance).exp() * torch.expm1(variance)


@RULES.rule(
    F.gelu,
    exact=False,
    assumes=GAUSSIAN + "; the mean is exact, and ten terms of a series give σ to within 1e-4 up to σ = 1; "
    '`approximate="tanh"` by quadrature with 13 nodes',
)
def gelu(operation: Operation, input: Any, *, approximate: str = "none") -> MomentTensor:
    """Compute the moments of z·Φ(z), in one sweep over memory where a compiled one exists.

    The rule is elementwise.
    """

    def function(z: Tensor) -> Tensor:
        return operation(z, approximate=approximate)

    def moments(mean: Tensor, variance: Tensor) -> Moments:
        shift, spread = integrate(function, mean, variance)
        return function(mean) + shift, spread

    def covariance(pick: Function) -> Tensor:
        """Return Cov(z, f(z)) = σ² E f'(z)."""
        variance = pick(input.variance)
        return variance * gelu_slope(pick(input.expected), variance)

    if input.setting.order == "taylor" or approximate != "none":
        return apply_elementwise(input, function, moments)
    mean, variance = add_gelu_moments(function(input.expected), input.expected, input.variance)
    correlations = input.correlations.elementwise(input.noise, Noise(variance), covariance, input.setting.rank)
    result: MomentTensor = input.like(mean, variance, correlations)
    return result


@RULES.elementwise(
    *(F.silu, F.mish, F.softplus, F.logsigmoid, F.softsign, F.tanhshrink, F.hardswish),
    *(torch.sigmoid, Tensor.sigmoid, torch.special.expit, torch.tanh, Tensor.tanh, F.sigmoid, F.tanh),
    *(torch.erf, Tensor.erf, torch.sin, Tensor.sin, torch.cos, Tensor.cos, torch.atan, Tensor.atan),
    *(torch._C._nn.silu, torch._C._nn.hardswish, torch._C._nn.mish),
    exact=False,
    assumes=GAUSSIAN + "; quadrature with 13 nodes: error below 1e-3 up to σ = 1 (hardswish, which has kinks, 0.02)",
)
def smooth(function: Function, mean: Tensor, variance: Tensor, *args: Any, **kwargs: Any) -> Moments:  # noqa: ARG001
    """Compute E f(z) and Var f(z) by Gauss-Hermite quadrature."""
    shift, spread = integrate(function, mean, variance)
    return function(mean) + shift, spread


@RULES.rule(
    *(torch.pow, Tensor.pow, Tensor.__pow__, torch.square, Tensor.square),
    exact=True,
    assumes="a Gaussian input and an exponent of 2; others by quadrature",
)
def power(operation: Operation, input: Any, exponent: Any = 2) -> Any:
    """Compute E z² = μ² + σ² and Var z² = 4μ²σ² + 2σ⁴."""
    x = only_first(operation, (input, exponent))
    function: Function = operation if operation in (torch.square, Tensor.square) else lambda z: operation(z, exponent)
    if x.mean_square_of is not None and exponent in (0.5, -0.5):
        return _scale_of_norm(function, x, exponent)

    def moments(mean: Tensor, variance: Tensor) -> Moments:
        if exponent == 2:
            return function(mean) + variance, 4 * mean.square() * variance + 2 * variance.square()
        shift, spread = integrate(function, mean, variance)
        return function(mean) + shift, spread

    result = apply_elementwise(x, function, moments, slope=False)
    result.squares_of = x if exponent == 2 else None
    return result


@RULES.rule(
    *(torch.rsqrt, Tensor.rsqrt, torch.sqrt, Tensor.sqrt),
    exact=False,
    assumes="the mean of squares that a norm divides by, to first order; for what it scales a plain number",
)
def root_of_mean_square(operation: Operation, input: Any) -> MomentTensor:
    """Compute the root of E mean x², for root-mean-square norms that are spelled out.

    The product with x itself follows the rule of ``F.rms_norm``, for which this scale is a plain number. The root of
    any other random number has no rule, because a number that may be negative has no root.
    """
    x = only_first(operation, (input,))
    if x.mean_square_of is None:
        missing(operation, x, "it has a rule for a mean of squares alone, such as root-mean-square norms divide by")
    return _scale_of_norm(operation, x, 0.5 if operation in (torch.sqrt, Tensor.sqrt) else -0.5)


def _scale_of_norm(function: Function, x: MomentTensor, exponent: float) -> MomentTensor:
    """Return zᵉ to first order: its variance is (e·zᵉ/z)²·σ²."""
    root = function(x.expected)
    slope = exponent * root / torch.where(x.expected == 0, 1, x.expected)
    result = x.like(root, slope.square() * x.variance, x.correlations.positions_alone())
    result.scale_of = x.mean_square_of
    return result
