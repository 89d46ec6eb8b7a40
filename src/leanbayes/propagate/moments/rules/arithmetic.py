"""Sums, differences, products and quotients, entry by entry. A random divisor has no moments, and so no rule."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from leanbayes.propagate.linear_ops import Operation
from leanbayes.propagate.moments.correlations import Averages, Correlations, Noise, Term
from leanbayes.propagate.moments.kinds import RULES
from leanbayes.propagate.moments.rules.activations import power
from leanbayes.propagate.moments.tensor import (
    MomentTensor,
    expected_of,
    first_random,
    missing,
    only_first,
    scale_of_norm,
    variance_of,
)

__all__ = ["add", "divide", "masked_fill", "multiply", "negate", "where"]

INDEPENDENT = "independent operands"
_ADD = (torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__)
_SUBTRACT = (torch.sub, Tensor.sub, Tensor.__sub__, torch.subtract, Tensor.subtract)
_FROM = (torch.rsub, Tensor.__rsub__)
Part = tuple[Tensor, Tensor | None]


@RULES.rule(*_ADD, *_SUBTRACT, *_FROM, exact=True, assumes=INDEPENDENT)
def add(operation: Operation, input: Any, other: Any, *, alpha: float = 1) -> MomentTensor:
    """Add by Var(x ± αy) = σ_x² + α²σ_y²; a tensor that is added to itself is doubled."""
    scale = {} if alpha == 1 else {"alpha": alpha}
    mean = operation(expected_of(input), expected_of(other), **scale)
    random = first_random(input, other)
    if input is other:
        factor = (1 + alpha) if operation in _ADD else (1 - alpha)
        return random.like(mean, factor**2 * random.variance, random.correlations)
    left, right = (1, alpha) if operation in _ADD else (-alpha, 1) if operation in _FROM else (1, -alpha)
    terms = [(value, factor) for value, factor in ((input, left), (other, right)) if isinstance(value, MomentTensor)]
    parts: list[Part] = []
    levels: list[Part] = []  # the means of the parts over positions, where they are known
    for value, factor in terms:
        variance = value.variance if abs(factor) == 1 else factor**2 * value.variance
        parts.append((variance, value.correlations.broadcast(variance, mean.shape, random.setting)))
        if value.averages is not None and value.shape == mean.shape:
            levels.append((factor**2 * value.averages.variance, value.correlations.positions))
    averages = None
    if len(levels) == len(parts):
        averages = Averages(None, None, sum((level for level, _ in levels[1:]), levels[0][0]))
    variance = _total(parts, mean)
    fraction = Correlations.mixed(parts if averages is None else levels, mean.shape).positions
    noisy = [Term(value.noise, value.correlations, factor) for value, factor in terms]
    correlations = Correlations.summed(fraction, noisy, Noise(variance, averages), random.setting.rank)
    result = random.like(mean, variance, correlations, averages)
    if operation in _ADD and alpha == 1:
        result.remake = _summed_again(input, other)
        if len(terms) == 1:  # a norm adds a small number before it divides
            result.mean_square_of = random.mean_square_of
    return result


def _summed_again(*summands: Any) -> Callable[[], tuple[Tensor, Tensor]] | None:
    """Return what computes mean and variance of a sum again, if a summand can be; the backward pass keeps the other."""
    if not all(isinstance(value, MomentTensor) for value in summands) or summands[0].shape != summands[1].shape:
        return None
    if all(value.remake is None for value in summands):
        return None
    left, right = (value.remake or _known(value.expected.detach(), value.variance.detach()) for value in summands)

    def again() -> tuple[Tensor, Tensor]:
        (x, x_variance), (y, y_variance) = left(), right()
        return x + y, x_variance + y_variance

    return again


def _known(*parts: Tensor) -> Callable[[], Any]:
    return lambda: parts


@RULES.rule(
    *(torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.multiply, Tensor.multiply),
    exact=True,
    assumes=INDEPENDENT,
)
def multiply(operation: Operation, input: Any, other: Any) -> MomentTensor:
    """Multiply by Var(xy) = x²σ_y² + y²σ_x² + σ_x²σ_y² (VDP++, eq. 7); a tensor times itself is squared."""
    if input is other:
        squared: MomentTensor = power(torch.pow, input, 2)
        return squared
    a, b = scale_of_norm(other, input), scale_of_norm(input, other)
    x, y, x_variance, y_variance = expected_of(a), expected_of(b), variance_of(a), variance_of(b)
    mean = operation(x, y)
    random = first_random(a, b)
    parts: list[Part] = []
    if x_variance is not None:
        parts.append((x_variance * y**2, a.correlations.broadcast(x_variance, mean.shape, random.setting)))
    if y_variance is not None:
        second = x**2 if x_variance is None else x**2 + x_variance
        parts.append((y_variance * second, b.correlations.broadcast(y_variance, mean.shape, random.setting)))
    return _scaled(random, y if random is a else x, mean, parts)


@RULES.rule(
    *(torch.div, Tensor.div, Tensor.__truediv__, Tensor.__div__, torch.true_divide, Tensor.true_divide, torch.divide),
    exact=True,
    assumes="a divisor that is not random",
)
def divide(operation: Operation, input: MomentTensor, other: Any, *, rounding_mode: str | None = None) -> MomentTensor:
    """Divide by a number that is not random: Var(x/c) = σ_x²/c². The scale of a norm counts as such a number."""
    other = scale_of_norm(input, other)
    if isinstance(other, MomentTensor) or rounding_mode is not None:
        missing(operation, first_random(input, other), "the divisor must not be random, nor the result be rounded")
    mean = operation(input.expected, other)
    fraction = input.correlations.broadcast(input.variance, mean.shape, input.setting)
    return _scaled(input, 1 / other, mean, [(input.variance / other**2, fraction)])


def _scaled(x: MomentTensor, factor: Any, mean: Tensor, parts: Sequence[Part]) -> MomentTensor:
    """Return ``factor``·x; what units share passes if the factor is not random and x is not broadcast."""
    variance, correlations = _total(parts, mean), Correlations.mixed(parts, mean.shape)
    if len(parts) == 1 and x.shape == mean.shape:
        scaled = x.correlations.scaled(factor, x.noise, Noise(variance))
        correlations = scaled.with_positions(correlations.positions)
    return x.like(mean, variance, correlations)


def _total(parts: Sequence[Part], mean: Tensor) -> Tensor:
    return sum((part for part, _ in parts[1:]), parts[0][0]).expand(mean.shape).to(mean.dtype)


@RULES.rule(torch.neg, Tensor.neg, torch.negative, Tensor.negative, exact=True)
def negate(operation: Operation, input: Any) -> MomentTensor:
    """Negate z: the variance stays, and the loadings change their sign."""
    result: MomentTensor = input.like(
        operation(input.expected), input.variance, input.correlations.scaled(-1.0, input.noise, Noise(input.variance))
    )
    return result


@RULES.rule(torch.masked_fill, Tensor.masked_fill, exact=True, assumes="a plain mask and a plain value")
def masked_fill(operation: Operation, input: Any, mask: Any, value: Any) -> MomentTensor:
    """Fill in numbers, which are not random."""
    x = only_first(operation, (input, mask, value))
    mean = operation(x.expected, mask, value)
    fraction = x.correlations.broadcast(x.variance, mean.shape, x.setting)
    return x.like(mean, x.variance.masked_fill(mask, 0), Correlations(fraction))


@RULES.rule(torch.where, Tensor.where, exact=True, assumes="a plain condition")
def where(operation: Operation, first: Any, second: Any, third: Any) -> MomentTensor:
    """Choose each entry from one of two tensors; the method ``Tensor.where`` takes the condition second."""
    condition, a, b = (second, first, third) if operation is Tensor.where else (first, second, third)
    random = first_random(condition, a, b)
    if isinstance(condition, MomentTensor):
        missing(operation, random, "its condition is random")
    mean = torch.where(condition, expected_of(a), expected_of(b))
    zero = mean.new_zeros(())
    variances = [value.variance if isinstance(value, MomentTensor) else zero for value in (a, b)]
    variance = torch.where(condition, variances[0], variances[1]).expand(mean.shape)
    choices = [value for value in (a, b) if isinstance(value, MomentTensor)]
    if any(value.shape != mean.shape for value in choices):
        return random.like(mean, variance)
    parts = [(value.variance, value.correlations.positions) for value in choices]
    return random.like(mean, variance, Correlations.mixed(parts, mean.shape))
