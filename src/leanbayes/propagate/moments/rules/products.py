"""Products that sum over axes: matmul, bmm, einsum of two operands, a product plus a tensor, and bilinear maps."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes._ops.safe_sqrt import SafeSqrt
from leanbayes.propagate.linear_ops import Operation
from leanbayes.propagate.moments.correlations import Correlations, LinearMap
from leanbayes.propagate.moments.kinds import RULES
from leanbayes.propagate.moments.rules.arithmetic import add
from leanbayes.propagate.moments.tensor import MomentTensor, expected_of, first_random, missing, variance_of

__all__ = ["add_product", "bilinear", "einsum", "matmul"]

ASSUMES = "independent entries of both operands, except for what positions share"
Axes = tuple[int, ...]


@RULES.rule(
    *(torch.matmul, Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__, torch.bmm, Tensor.bmm, torch.mm, Tensor.mm),
    exact=True,
    assumes=ASSUMES,
)
def matmul(operation: Operation, input: Any, other: Any) -> MomentTensor:
    """Compute Var Σ ab = Σ (a² + σ_a²)σ_b² + Σ σ_a² b²."""
    mean = operation(expected_of(input), expected_of(other))
    a, b = (other, input) if operation is Tensor.__rmatmul__ else (input, other)
    if a.dim() < 2 or b.dim() < 2:
        return _contract(torch.matmul, mean, a, b, ((), ()), ((), ()))
    summed, free = ((a.dim() - 1,), (b.dim() - 2,)), ((mean.dim() - 2,), (mean.dim() - 1,))
    product = _contract(torch.matmul, mean, a, b, summed, free)
    if b.dim() > 2 or a.dim() == 2:
        return product
    layer = _as_layer(a, b, product.setting.examples)
    return product.like(mean, *Correlations.linear(product.variance, layer, product.setting))


def _as_layer(a: Any, b: Any, examples: int) -> LinearMap:
    """Return a·b, where one matrix b meets all positions of a, as the linear layer that it is."""
    weight, w_variance = expected_of(b).mT, variance_of(b)
    random = isinstance(a, MomentTensor)
    return LinearMap(
        input=expected_of(a),
        noise=a.noise if random else None,
        correlations=a.correlations if random else Correlations(),
        weight=weight,
        square=weight.square(),
        fold_variance=None if w_variance is None else lambda _: w_variance.mT,
        bias_variance=None,
        channel=a.dim() - 1,
        axes=tuple(axis for axis in range(a.dim() - 1) if axis != examples),
        at_one_position=F.linear,
        shares=weight.new_ones(1),
    )


@RULES.rule(torch.baddbmm, Tensor.baddbmm, torch.addmm, Tensor.addmm, exact=True, assumes=ASSUMES)
def add_product(operation: Operation, input: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> MomentTensor:
    """Compute the moments of β·input + α·ab."""
    mean = operation(*map(expected_of, (input, a, b)), beta=beta, alpha=alpha)
    product = torch.matmul(a, b) * alpha
    total: MomentTensor = add(torch.add, product, input if beta == 1 else input * beta)
    return total.like(mean, total.variance, total.correlations.positions_alone())


@RULES.rule(torch.einsum, exact=True, assumes=ASSUMES + "; two operands, neither of which repeats a letter")
def einsum(operation: Operation, equation: Any, *operands: Any) -> MomentTensor:
    """Multiply and sum as the rule of matmul does, along the axes that the letters name."""
    values = operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
    random = next(value for value in values if isinstance(value, MomentTensor))
    terms, _, out = str(equation).replace(" ", "").partition("->")
    letters = terms.split(",")
    if len(values) != 2 or not out or "." in terms or any(len(set(term)) < len(term) for term in (*letters, out)):
        missing(operation, random, "it has rules for two operands with an explicit output, no dots, no repeated letter")
    left, right = letters
    mean = operation(equation, *map(expected_of, values))
    summed = [tuple(i for i, letter in enumerate(term) if letter not in out) for term in letters]
    free = [
        tuple(i for i, letter in enumerate(out) if letter in mine and letter not in others)
        for mine, others in ((left, right), (right, left))
    ]
    return _contract(lambda a, b: operation(equation, a, b), mean, values[0], values[1], tuple(summed), tuple(free))


def _contract(
    apply: Callable[[Any, Any], Tensor], mean: Tensor, a: Any, b: Any, summed: tuple[Axes, ...], free: tuple[Axes, ...]
) -> MomentTensor:
    """Return the moments of a product. Where it sums over an operand's positions, their shared part adds as one number.

    ``summed`` are, for each operand, its axes that are summed over; ``free`` are, for each operand, the axes of the
    product that come from it alone.
    """
    axes: Axes = ()
    total, common = None, None
    for flipped, value, other in ((False, a, b), (True, b, a)):
        if not isinstance(other, MomentTensor):
            continue
        mean_of_value, spread, noise = expected_of(value), variance_of(value), other.variance
        rho = other.correlations.positions

        def product(one: Tensor, two: Tensor, flipped: bool = flipped) -> Tensor:
            return apply(two, one) if flipped else apply(one, two)

        second = mean_of_value.square()
        if spread is not None and not flipped:
            second = second + spread  # the product of both variances counts once
        if rho is not None and set(other.correlations.common_axes(other.shape)) & set(summed[1 - flipped]):
            part = product(second, (1 - rho) * noise)
            together = product(mean_of_value, SafeSqrt.apply(rho * noise)).square()
            if spread is not None and not flipped:
                part = part + product(spread, rho * noise)
            part = part + together
            common, axes = together if common is None else common + together, free[flipped]
        else:
            part = product(second, noise)
        total = part if total is None else total + part
    assert total is not None
    return first_random(a, b).like(mean, total.clamp_min(0), Correlations.contracted(common, total, axes))


@RULES.linear(F.bilinear, exact=True, assumes="as for linear; the two inputs are not random")
def bilinear(operation: Operation, input1: Any, input2: Any, weight: Any, bias: Any = None) -> tuple[Tensor, Tensor]:
    """Compute the moments of y_o = x₁ᵀ W_o x₂ + b_o; the same operation on squares gives the variance."""
    random = first_random(input1, input2, weight, bias)
    if isinstance(input1, MomentTensor) or isinstance(input2, MomentTensor):
        missing(operation, random, "its inputs may not be random, only weight and bias")
    w_variance, b_variance = variance_of(weight), variance_of(bias)
    mean = operation(input1, input2, expected_of(weight), expected_of(bias))
    if w_variance is not None:
        return mean, operation(input1.square(), input2.square(), w_variance, b_variance)
    assert b_variance is not None
    return mean, b_variance.expand_as(mean)
