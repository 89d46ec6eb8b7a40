"""Products that sum over axes: matmul, bmm, einsum of two operands, and the sums of a product and a tensor."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes._ops.safe_sqrt import SafeSqrt
from leanbayes.propagate.linear_ops import Operation
from leanbayes.propagate.moments.rules.arithmetic import add
from leanbayes.propagate.moments.shared import common_axes, linear_fraction, ratio
from leanbayes.propagate.moments.spread import Dense
from leanbayes.propagate.moments.tensor import RULES, MomentTensor, expected_of, first_random, missing, parts_of
from leanbayes.propagate.moments.tied_layer import Layer, tie

__all__ = ["add_product", "einsum", "matmul"]

INDEPENDENT = "independent entries of both operands, or positions with a shared part"
Axes = tuple[int, ...]


@RULES.rule(
    *(torch.matmul, Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__, torch.bmm, Tensor.bmm, torch.mm, Tensor.mm),
    exact=True,
    assumes=INDEPENDENT,
)
def matmul(operation: Operation, input: Any, other: Any) -> MomentTensor:
    """Var Σ ab = Σ (a² + σ_a²)σ_b² + Σ σ_a² b²."""
    mean = operation(expected_of(input), expected_of(other))
    a, b = (other, input) if operation is Tensor.__rmatmul__ else (input, other)
    if a.dim() < 2 or b.dim() < 2:
        return _contract(torch.matmul, mean, a, b, ((), ()), ((), ()))
    found = _contract(
        torch.matmul, mean, a, b, ((a.dim() - 1,), (b.dim() - 2,)), ((mean.dim() - 2,), (mean.dim() - 1,))
    )
    if b.dim() == 2 and a.dim() > 2:  # one matrix for all positions, as a linear layer has
        w, w_variance, _ = parts_of(b)
        variance = None if w_variance is None else Dense(w_variance.mT)
        square = w.mT.square()
        found.shared = linear_fraction(F.linear, found.setting, parts_of(a), (square, variance), None)
        return tie(found, Layer(F.linear, a, w.mT, square, variance, None))
    return found


@RULES.rule(torch.baddbmm, Tensor.baddbmm, torch.addmm, Tensor.addmm, exact=True, assumes=INDEPENDENT)
def add_product(operation: Operation, input: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> MomentTensor:
    """β·input + α·ab."""
    mean = operation(*map(expected_of, (input, a, b)), beta=beta, alpha=alpha)
    product = torch.matmul(a, b) * alpha
    found: MomentTensor = add(torch.add, product, input if beta == 1 else input * beta)
    return found.like(mean, found.variance, found.shared)


@RULES.rule(torch.einsum, exact=True, assumes=INDEPENDENT + "; two operands, none repeating a letter")
def einsum(operation: Operation, equation: Any, *operands: Any) -> MomentTensor:
    """As for matmul, with the axes that the letters name."""
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
    """The moments of a product. Where an operand's positions are summed over, their shared part adds as one number."""
    (x, x_variance, x_shared), (y, y_variance, y_shared) = parts_of(a), parts_of(b)
    axes: Axes = ()
    total, common = None, None
    for flipped, (value, spread), (other, noise, shared) in (
        (False, (x, x_variance), (y, y_variance, y_shared)),
        (True, (y, y_variance), (x, x_variance, x_shared)),
    ):
        if noise is None:
            continue

        def product(one: Tensor, two: Tensor, flipped: bool = flipped) -> Tensor:
            return apply(two, one) if flipped else apply(one, two)

        second = value.square()
        if spread is not None and not flipped:
            second = second + spread  # the product of both variances, once
        if shared is not None and set(common_axes(other.shape, shared)) & set(summed[1 - flipped]):
            part = product(second, (1 - shared) * noise)
            together = product(value, SafeSqrt.apply(shared * noise)).square()
            if spread is not None and not flipped:
                part = part + product(spread, shared * noise)
            part = part + together
            common, axes = together if common is None else common + together, free[flipped]
        else:
            part = product(second, noise)
        total = part if total is None else total + part
    assert total is not None
    random = first_random(a, b)
    return random.like(mean, total.clamp_min(0), None if common is None else ratio(common, total, axes))
