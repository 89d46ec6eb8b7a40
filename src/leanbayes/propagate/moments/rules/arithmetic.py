"""Sums, differences, products and quotients, entry by entry; a random divisor has no moments, and no rule."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from leanbayes.propagate.linear_ops import Operation
from leanbayes.propagate.moments.gaussian import integrate, taylor
from leanbayes.propagate.moments.shared import mix, of_broadcast
from leanbayes.propagate.moments.tensor import (
    RULES,
    Averages,
    MomentTensor,
    expected_of,
    first_random,
    missing,
    only_first,
    parts_of,
)
from leanbayes.propagate.moments.ties import scaled, summed

__all__ = ["add", "divide", "masked_fill", "multiply", "negate", "power", "where"]

INDEPENDENT = "independent operands"
_ADD = (torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__)
_SUBTRACT = (torch.sub, Tensor.sub, Tensor.__sub__, torch.subtract, Tensor.subtract)
_FROM = (torch.rsub, Tensor.__rsub__)


@RULES.rule(*_ADD, *_SUBTRACT, *_FROM, exact=True, assumes=INDEPENDENT)
def add(operation: Operation, input: Any, other: Any, *, alpha: float = 1) -> MomentTensor:
    """Var(x ± αy) = σ_x² + α²σ_y²; a tensor added to itself is doubled."""
    scale = {} if alpha == 1 else {"alpha": alpha}
    mean = operation(expected_of(input), expected_of(other), **scale)
    random = first_random(input, other)
    if input is other:
        factor = (1 + alpha) if operation in _ADD else (1 - alpha)
        return random.like(mean, factor**2 * random.variance, random.shared).tied(random.ties)
    left, right = (1, alpha) if operation not in _FROM else (alpha, 1)
    parts, levels = [], []
    for value, factor in ((input, left), (other, right)):
        _, variance, shared = parts_of(value)
        if variance is not None:
            variance = variance if factor == 1 else factor**2 * variance
            parts.append(of_broadcast((variance, shared), mean.shape, random.setting))
            if value.averages is not None and value.shape == mean.shape:
                levels.append((factor**2 * value.averages.variance, shared))
    known = levels if len(levels) == len(parts) else None
    found = _joined(random, mean, parts, known)
    if known is not None:
        found.averages = Averages(None, None, sum((part for part, _ in known[1:]), known[0][0]))
    signs = (1, 1) if operation in _ADD else (-1, 1) if operation in _FROM else (1, -1)
    factors = zip((input, other), (left * signs[0], right * signs[1]), strict=True)
    terms = [(value, factor) for value, factor in factors if isinstance(value, MomentTensor)]
    found.tied(summed(terms, found.variance, random.setting.rank, found.averages))
    if operation in _ADD and alpha == 1:
        found.remake = _again(input, other)
    return found


def _again(*summands: Any) -> Callable[[], tuple[Tensor, Tensor]] | None:
    """Mean and variance of a sum once more, if a summand can be made again; the others are kept anyway."""
    if not all(isinstance(value, MomentTensor) for value in summands) or summands[0].shape != summands[1].shape:
        return None
    if all(value.remake is None for value in summands):
        return None
    left, right = (value.remake or _kept(value.expected.detach(), value.variance.detach()) for value in summands)

    def again() -> tuple[Tensor, Tensor]:
        (x, x_variance), (y, y_variance) = left(), right()
        return x + y, x_variance + y_variance

    return again


def _kept(*parts: Tensor) -> Callable[[], Any]:
    return lambda: parts


@RULES.rule(
    *(torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.multiply, Tensor.multiply),
    exact=True,
    assumes=INDEPENDENT,
)
def multiply(operation: Operation, input: Any, other: Any) -> MomentTensor:
    """Var(xy) = x²σ_y² + y²σ_x² + σ_x²σ_y² (002, eq. 7); a tensor times itself is squared."""
    if input is other:
        squared: MomentTensor = power(torch.pow, input, 2)
        return squared
    (x, x_variance, x_shared), (y, y_variance, y_shared) = parts_of(input), parts_of(other)
    mean = operation(x, y)
    random = first_random(input, other)
    parts = []
    if x_variance is not None:
        parts.append((x_variance * y**2, x_shared, x_variance))
    if y_variance is not None:
        parts.append((y_variance * (x**2 if x_variance is None else x**2 + x_variance), y_shared, y_variance))
    known = [(v, of_broadcast((own, shared), mean.shape, random.setting)[1]) for v, shared, own in parts]
    found = _joined(random, mean, known)
    if len(parts) == 2 or random.shape != mean.shape:
        return found
    factor = y if random is input else x
    return found.tied(scaled(random, factor, found.variance))


@RULES.rule(
    *(torch.div, Tensor.div, Tensor.__truediv__, Tensor.__div__, torch.true_divide, Tensor.true_divide, torch.divide),
    exact=True,
    assumes="a divisor that is not random",
)
def divide(operation: Operation, input: MomentTensor, other: Any, *, rounding_mode: str | None = None) -> MomentTensor:
    """Var(x/c) = σ_x²/c²."""
    if isinstance(other, MomentTensor) or rounding_mode is not None:
        missing(operation, first_random(input, other), "the divisor must not be random, nor the result be rounded")
    mean = operation(input.expected, other)
    variance, shared = of_broadcast((input.variance, input.shared), mean.shape, input.setting)
    found = _joined(input, mean, [(variance / other**2, shared)])
    if input.shape != mean.shape:
        return found
    return found.tied(scaled(input, 1 / other, found.variance))


@RULES.rule(torch.neg, Tensor.neg, torch.negative, Tensor.negative, exact=True)
def negate(operation: Operation, input: Any) -> MomentTensor:
    """-z."""
    result: MomentTensor = input.like(operation(input.expected), input.variance, input.shared)
    return result.tied(scaled(input, -1.0, input.variance))


@RULES.rule(
    *(torch.pow, Tensor.pow, Tensor.__pow__, torch.square, Tensor.square),
    exact=True,
    assumes="a Gaussian input and an exponent of 2; others by quadrature",
)
def power(operation: Operation, input: Any, exponent: Any = 2) -> MomentTensor:
    """E z² = μ² + σ², Var z² = 4μ²σ² + 2σ⁴."""
    x = only_first(operation, (input, exponent))

    def function(z: Tensor) -> Tensor:
        return torch.pow(z, exponent)

    if x.setting.order == "taylor":
        return x.like(*taylor(function, x.expected, x.variance), x.shared)
    if exponent == 2:
        shift, variance = x.variance, 4 * x.expected.square() * x.variance + 2 * x.variance.square()
    else:
        shift, variance = integrate(function, x.expected, x.variance)
    return x.like(function(x.expected) + shift, variance, x.shared)


@RULES.rule(torch.masked_fill, Tensor.masked_fill, exact=True, assumes="a plain mask and a plain value")
def masked_fill(operation: Operation, input: Any, mask: Any, value: Any) -> MomentTensor:
    """What is filled in is not random."""
    x = only_first(operation, (input, mask, value))
    mean = operation(x.expected, mask, value)
    variance, shared = of_broadcast((x.variance, x.shared), mean.shape, x.setting)
    return x.like(mean, variance.masked_fill(mask, 0), shared)


@RULES.rule(torch.where, Tensor.where, exact=True, assumes="a plain condition")
def where(operation: Operation, first: Any, second: Any, third: Any) -> MomentTensor:
    """Chosen entry by entry; the spelling of the method has the condition second."""
    condition, a, b = (second, first, third) if operation is Tensor.where else (first, second, third)
    random = first_random(condition, a, b)
    if isinstance(condition, MomentTensor):
        missing(operation, random, "its condition is random")
    mean = torch.where(condition, expected_of(a), expected_of(b))
    zero = mean.new_zeros(())
    variances = [value.variance if isinstance(value, MomentTensor) else zero for value in (a, b)]
    variance = torch.where(condition, variances[0], variances[1]).expand(mean.shape)
    same = all(parts_of(value)[1] is None or value.shape == mean.shape for value in (a, b))
    parts = [(value.variance, value.shared) for value in (a, b) if isinstance(value, MomentTensor)]
    return random.like(mean, variance, mix(parts, mean.shape) if same else None)


def _joined(random: MomentTensor, mean: Tensor, parts: Any, levels: Any = None) -> MomentTensor:
    variance = sum((part for part, _ in parts[1:]), parts[0][0])
    return random.like(mean, variance.expand(mean.shape).to(mean.dtype), mix(levels or parts, mean.shape))
