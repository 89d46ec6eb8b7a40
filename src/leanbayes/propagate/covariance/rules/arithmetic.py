"""Sums, and products with a plain value or with a random weight."""

from typing import Any

import torch
from torch import Tensor

from leanbayes.propagate.covariance.rules.common import scaled, summed
from leanbayes.propagate.covariance.tensor import (
    RULES,
    CovarianceTensor,
    expected_of,
    first_random,
    full,
    only_first,
)
from leanbayes.propagate.dispatch import missing
from leanbayes.propagate.linear_ops import Operation

__all__ = ["add", "multiply", "negate"]

_ADD = (torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__)
_SUBTRACT = (torch.sub, Tensor.sub, Tensor.__sub__, torch.subtract, Tensor.subtract)
_FROM = (torch.rsub, Tensor.__rsub__)
_DIVIDE = (torch.div, Tensor.div, Tensor.__truediv__, torch.true_divide, torch.divide)


@RULES.rule(*_ADD, *_SUBTRACT, *_FROM, exact=True, assumes="independent operands")
def add(operation: Operation, input: Any, other: Any, *, alpha: float = 1) -> CovarianceTensor:
    """Add by Cov(x ± αy) = Σ_x + α²Σ_y; a tensor added to itself is doubled."""
    scale = {} if alpha == 1 else {"alpha": alpha}
    mean = operation(expected_of(input), expected_of(other), **scale)
    random = _activation(operation, input, other)
    if input is other:
        return random.like(mean, ((1 + alpha) if operation in _ADD else (1 - alpha)) ** 2 * random.blocks)
    left, right = (1, alpha) if operation not in _FROM else (alpha, 1)
    total: CovarianceTensor | None = None
    for value, factor in ((input, left), (other, right)):
        if not isinstance(value, CovarianceTensor):
            continue
        if value.weight is not None:
            value = _copies(random, value)
        elif value.shape != mean.shape:
            missing(operation, random, "what depends on the input is broadcast")
        part = random.like(mean, value.blocks if factor == 1 else factor**2 * value.blocks)
        total = part if total is None else summed(total, part)
    assert total is not None
    return total


@RULES.rule(
    *(torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.multiply, Tensor.multiply, *_DIVIDE),
    exact=True,
    assumes="a factor that is plain, or a random weight; a plain divisor",
)
def multiply(operation: Operation, input: Any, other: Any) -> CovarianceTensor:
    """Multiply by a number, Cov(cx) = c c' Σ, or by a random weight w: + σ_w² E(x x') wherever the same w stands."""
    x = _activation(operation, input, other)
    factor = other if x is input else input
    if isinstance(factor, CovarianceTensor) and (factor.weight is None or operation in _DIVIDE):
        missing(operation, x, "the product of two tensors that depend on the input, or a random divisor")
    if operation in _DIVIDE and x is not input:
        missing(operation, x, "the divisor is random")
    mean = operation(expected_of(input), expected_of(other))
    if mean.shape != x.shape:
        missing(operation, x, "what depends on the input is broadcast")
    number = torch.as_tensor(expected_of(factor), dtype=mean.dtype, device=mean.device)
    scale = number.reciprocal() if operation in _DIVIDE else number
    product = x.like(mean, scaled(x, scale))
    if not isinstance(factor, CovarianceTensor):
        return product
    same = _copies(x, factor).blocks
    flat = x.expected.flatten(1)
    return summed(product, x.like(mean, same * (full(x) + flat.unsqueeze(-1) * flat.unsqueeze(-2)).unsqueeze(1)))


@RULES.rule(torch.neg, Tensor.neg, torch.negative, exact=True)
def negate(operation: Operation, input: Any) -> CovarianceTensor:
    """Negate z, which leaves the covariance as it is."""
    x = only_first(operation, input)
    return x.like(operation(x.expected), x.blocks)


def _activation(operation: Any, *values: Any) -> CovarianceTensor:
    """Return the first value that depends on the input."""
    activations = [value for value in values if isinstance(value, CovarianceTensor) and value.weight is None]
    if not activations:
        missing(operation, first_random(*values), "a random weight is known to layers, and beside what is random")
    return activations[0]


def _copies(x: CovarianceTensor, parameter: CovarianceTensor) -> CovarianceTensor:
    """Broadcast a random weight to the shape of x; copies of one entry are fully correlated."""
    assert parameter.weight is not None
    variance = parameter.weight.variance()
    numbers = torch.arange(variance.numel(), device=variance.device).view(variance.shape).expand(x.shape)
    if len(numbers) > 1 and not torch.equal(numbers[0], numbers[1]):
        missing(torch.broadcast_to, x, "a weight has an axis of examples")
    entry = numbers[0].flatten()
    x.setting.check(1, 1, len(entry), variance)
    same = (entry.unsqueeze(-1) == entry).to(variance.dtype) * variance.flatten()[entry]
    return x.like(x.expected, same.expand(len(x.expected), 1, -1, -1))
