"""Layers that are linear in weight and input: each of the two, and the bias, random or not (002, eq. 2, 3, 6, 7)."""

import math
from typing import Any

import torch.nn.functional as F

from leanbayes.propagate.linear_ops import LINEAR_OPS, Operation, along_channels
from leanbayes.propagate.moments.boxes import averages_of, folded_square, in_boxes, shares_of, variance_in_boxes
from leanbayes.propagate.moments.layer import Means, variance_of_layer
from leanbayes.propagate.moments.shared import linear_fraction
from leanbayes.propagate.moments.spread import Dense, spread_of
from leanbayes.propagate.moments.tensor import RULES, MomentTensor, expected_of, first_random, missing, parts_of
from leanbayes.propagate.moments.tied_layer import Layer, tie


@RULES.rule(
    *LINEAR_OPS, exact=True, assumes='independent inputs, weights and bias; with `kernels="box"` also even filters'
)
def linear(operation: Operation, input: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> MomentTensor:
    """Var y = op(x² + σ_x², σ_w²) + op(σ_x², w²) + σ_b²: one product more for each operand that is random."""
    (x, x_variance, x_shared), w, (b, b_variance, _) = parts_of(input), expected_of(weight), parts_of(bias)
    w_spread = spread_of(operation, weight)
    mean = operation(x, w, b, *args, **kwargs)
    means: Means | None = None
    w_square: Any = None
    random = first_random(input, weight, bias)
    groups = 1 if operation is F.linear else kwargs.get("groups", args[3] if len(args) > 3 else 1)
    boxed = in_boxes(operation, groups, random.setting)
    if x_variance is not None and not boxed:
        w_square = w.square()
    if boxed and x_variance is not None:
        window = tuple(w.shape[2:])
        shares = shares_of(operation, x, window, args, kwargs)
        shares = x.new_ones(math.prod(window)) if shares is None else shares / shares.mean().clamp_min(1e-12)
        w_square = folded_square(w, shares)
        of_weight = None if w_spread is None else w_spread.folded(operation, shares)
        w_spread = None if of_weight is None else Dense(of_weight)
        variance = variance_in_boxes(operation, x, x_variance, window, w_square, of_weight, b_variance, args, kwargs)
        means = averages_of(input)
    elif w_spread is not None and x_variance is not None:
        variance, means = variance_of_layer(operation, x, x_variance, w, w_square, w_spread, b_variance, args, kwargs)
    elif w_spread is not None:
        variance = w_spread.product(operation, x.square(), args, kwargs)
        if b_variance is not None:
            variance = variance + along_channels(operation, b_variance, mean)
    elif x_variance is not None:
        variance = operation(x_variance, w_square, b_variance, *args, **kwargs)
    else:  # only the bias is random
        assert b_variance is not None
        variance = along_channels(operation, b_variance, mean).expand_as(mean)
    if random.setting.examples != 0:  # the means are those for each row of the first axis
        means = None
    shared = linear_fraction(
        operation, random.setting, (x, x_variance, x_shared), (w_square, w_spread), b_variance, groups, means
    )
    layer = Layer(operation, input, w, w_square, w_spread, b_variance, args, kwargs, means)
    return tie(random.like(mean, variance, shared), layer)


@RULES.rule(F.bilinear, exact=True, assumes="as for linear; the two inputs are not random")
def bilinear(operation: Operation, input1: Any, input2: Any, weight: Any, bias: Any = None) -> MomentTensor:
    """y_o = x₁ᵀ W_o x₂ + b_o: variance by the same operation on squares."""
    random = first_random(input1, input2, weight, bias)
    if isinstance(input1, MomentTensor) or isinstance(input2, MomentTensor):
        missing(operation, random, "its inputs may not be random, only weight and bias")
    (w, w_variance, _), (b, b_variance, _) = map(parts_of, (weight, bias))
    mean = operation(input1, input2, w, b)
    if w_variance is not None:
        variance = operation(input1.square(), input2.square(), w_variance, b_variance)
    else:
        assert b_variance is not None
        variance = b_variance.expand_as(mean)
    return random.like(mean, variance)


@RULES.rule(F.embedding, exact=True, assumes="independent rows: a token that stands twice is not told apart")
def embedding(
    operation: Operation,
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: Any = None,
    *args: Any,
    **kwargs: Any,
) -> MomentTensor:
    """Rows of the mean and of the variance."""
    random = first_random(input, weight)
    if max_norm is not None or random is input:
        missing(operation, random, "max_norm rescales the table itself" if max_norm else "its indices are random")
    tables = (weight.expected, weight.variance)
    return random.like(*(operation(input, table, padding_idx, None, *args, **kwargs) for table in tables))


__all__ = ["bilinear", "embedding", "linear"]
