"""`Local`: the noise of the weights is moved to the outputs (Kingma et al. 2015; SSVI, eq. 4 and 5)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes._ops import sparse
from leanbayes._ops.safe_sqrt import SafeSqrt, draw_normal
from leanbayes._ops.sparse_tensor import SPARSE_OPS, SparseTensor
from leanbayes.posteriors import RandomWeight
from leanbayes.propagate.linear_ops import (
    LINEAR_OPS,
    Operation,
    along_channels,
    channel_axis,
    mean_of,
    plain_input,
    weight_of,
)
from leanbayes.propagate.propagation import Propagation, Weights
from leanbayes.propagate.registry import Registry
from leanbayes.propagate.shared_variance import variance_through
from leanbayes.propagate.stand_in import StandIn, make_stand_in

__all__ = ["RULES", "Local"]

RULES = Registry("local")


@dataclass(frozen=True)
class Local(Propagation):
    """Local reparameterization: each output of a layer is drawn from its own distribution (Kingma et al. 2015).

    Gradients are less noisy than with weight draws. A pass takes two products where a plain one takes one. Outputs that
    share a weight, such as the pixels under one filter, are drawn independently, which no single weight draw would do.
    An operation without a rule, such as the affine part of a norm, sees one weight draw for the whole batch.

    >>> Local().name
    'local'
    """

    name: ClassVar[str] = "local"
    works_on_pieces: ClassVar[bool] = True

    def stand_ins(
        self,
        weights: Weights,
        model: nn.Module,  # noqa: ARG002
        generator: torch.Generator | None,
    ) -> dict[str, Tensor]:
        """Make tensors whose linear operations give N(E[y], Var[y]) instead of y at one weight draw."""
        return {name: make_stand_in(weight, RULES, generator) for name, weight in weights.items()}


@RULES.rule(
    *LINEAR_OPS,
    exact=True,
    assumes="Normal or Radial weights, else mean and variance; outputs that share a weight are drawn independently",
)
def linear(operation: Operation, input: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> Tensor:
    """Draw y ~ N(op(x, μ, μ_b), op(x², σ², σ_b²)), or with the noise that the family has for outputs."""
    x = plain_input(input)
    w, b = weight_of(weight), weight_of(bias)
    both = _both_sparse(operation, x, w, mean_of(bias), *args, **kwargs)
    mean = operation(x, mean_of(weight), mean_of(bias), *args, **kwargs) if both is None else both[0]
    if w is None and b is None:  # only the input was random, and is a draw by now
        return mean
    axis = channel_axis(operation, mean)
    if b is not None and (w is None or b.family.joint):  # a joint family has a radius for each tensor
        spread = along_channels(operation, b.variance(), mean).expand_as(mean)
        mean, b, bias = _draw(mean, spread, axis, bias), None, None
    if w is None:
        return mean
    if both is not None:
        variance = both[1] if b is None else both[1] + along_channels(operation, b.variance(), mean)
        return _draw(mean, variance, axis, weight, bias, reuse=True)
    shared, of_bias = w.shared_variance(), None if b is None else b.variance()
    stored = w.variance() if shared is None else shared
    variance = variance_through(operation, x.square(), stored, w.mean.shape, of_bias, *args, **kwargs)
    return _draw(mean, variance, axis, weight, bias, reuse=shared is None)


def _both_sparse(
    operation: Operation, x: Tensor, w: RandomWeight | None, bias: Any, *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor] | None:
    """Compute mean and variance over the stored entries of a sparse weight; one sweep if all of them are random."""
    if w is None or not isinstance(w.mean, SparseTensor) or operation not in SPARSE_OPS:
        return None
    shape, values, variance = tuple(w.mean.shape), w.mean.stored, w.random_variance()
    assert w.index is not None
    if w.index is w.mean.positions:
        both = sparse.linear_moments if operation is F.linear else sparse.conv_moments
        mean, spread = both(x, w.index, shape, values, variance, *args, **kwargs)
    else:
        one = sparse.linear if operation is F.linear else sparse.conv
        mean = one(x, w.mean.positions, shape, values, *args, **kwargs)
        spread = one(x.square(), w.index, shape, variance, *args, **kwargs)
    return mean if bias is None else mean + along_channels(operation, bias, mean), spread


@RULES.rule(F.bilinear, exact=True, assumes="as for linear")
def bilinear(operation: Operation, input1: Any, input2: Any, weight: Any, bias: Any = None) -> Tensor:
    """Draw y_o = x₁ᵀ W_o x₂ + b_o, whose variance is the same operation on squares."""
    first, second = plain_input(input1), plain_input(input2)
    mean = operation(first, second, mean_of(weight), mean_of(bias))
    w, b = weight_of(weight), weight_of(bias)
    axis = mean.dim() - 1
    if b is not None and (w is None or b.family.joint):
        mean, b, bias = _draw(mean, b.variance().expand_as(mean), axis, bias), None, None
    if w is None:
        return mean
    variance = operation(first.square(), second.square(), w.variance(), None if b is None else b.variance())
    return _draw(mean, variance, axis, weight, bias)


@RULES.rule(F.embedding, exact=True, assumes="as for linear: a token that stands twice is drawn twice")
def embedding(
    operation: Operation,
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """Draw from rows of the mean and of the variance."""
    if max_norm is not None:  # torch rescales the table itself, and only a draw of it has a norm
        return operation(input, weight.draw(), padding_idx, max_norm, *args, **kwargs)
    mean = operation(input, mean_of(weight), padding_idx, None, *args, **kwargs)
    variance = operation(input, weight.weight.variance(), padding_idx, None, *args, **kwargs)
    return _draw(mean, variance, mean.dim() - 1, weight)


def _draw(mean: Tensor, variance: Tensor, axis: int, *stand_ins: Any, reuse: bool = False) -> Tensor:
    """Add noise of that variance to the mean. The features, which have weights of their own, lie along ``axis``.

    With ``reuse`` the memory of both is used again. That is right where they come fresh from operations whose gradients
    do not need them, such as linear maps.
    """
    first = next(s for s in stand_ins if isinstance(s, StandIn))
    family = first.weight.family
    if not family.joint:
        return draw_normal(mean, variance, first.generator, reuse=reuse)
    root: Tensor = SafeSqrt.apply(variance)
    return mean + root * family.output_noise(variance, axis, first.weight.count, first.generator)
