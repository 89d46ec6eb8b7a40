"""`Flipout`: one weight draw, its sign flipped at random for each example (Wen et al. 2018)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes._ops import sparse
from leanbayes._ops.sparse_tensor import SPARSE_OPS, SparseTensor
from leanbayes.errors import InputError
from leanbayes.propagate.linear_ops import (
    LINEAR_OPS,
    Operation,
    along_channels,
    channel_axis,
    mean_of,
    plain_input,
    signs_like,
    weight_of,
)
from leanbayes.propagate.propagation import Propagation, Weights
from leanbayes.propagate.registry import Registry
from leanbayes.propagate.stand_in import StandIn, make_stand_in

__all__ = ["RULES", "Flipout"]

RULES = Registry("flipout", by_example=True)


@dataclass(frozen=True)
class Flipout(Propagation):
    """One weight draw whose sign is flipped at random for each example and feature (Wen et al. 2018).

    Each example sees a correct draw, and the draws of two examples are uncorrelated. A pass takes two products where a
    plain one takes one. The posterior must be symmetric about its mean.

    >>> Flipout().differs_within_batch
    True
    """

    name: ClassVar[str] = "flipout"
    differs_within_batch: ClassVar[bool] = True

    def stand_ins(
        self,
        weights: Weights,
        model: nn.Module,  # noqa: ARG002
        generator: torch.Generator | None,
    ) -> dict[str, Tensor]:
        """Make tensors whose linear operations decorrelate the examples of a batch."""
        for weight in weights.values():
            if not weight.family.symmetric:
                raise InputError(
                    f"flipout needs noise that is symmetric about 0, which {weight.family} is not; "
                    'use propagate="sample"'
                )
        return {name: make_stand_in(weight, RULES, generator) for name, weight in weights.items()}


@RULES.rule(
    *LINEAR_OPS,
    exact=True,
    assumes="the first axis holds the examples; each gets a correct draw, not independent of the others'",
)
def linear(operation: Operation, input: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> Tensor:
    """Compute y = op(x, μ, μ_b) + r ∘ op(x ∘ s, ΔW, Δb) with random signs s and r for each example and feature."""
    x = plain_input(input)
    mean = operation(x, mean_of(weight), mean_of(bias), *args, **kwargs)
    if weight_of(weight) is None and weight_of(bias) is None:  # only the input was random, and is a draw by now
        return mean
    signs = signs_like(mean, channel_axis(operation, mean), _generator(weight, bias))
    if weight_of(weight) is None:
        return mean + signs * along_channels(operation, _offset(bias), mean)
    flipped = x * signs_like(x, channel_axis(operation, x), _generator(weight))
    return mean + signs * _noise(operation, flipped, weight, bias, *args, **kwargs)


def _noise(operation: Operation, x: Tensor, weight: StandIn, bias: Any, *args: Any, **kwargs: Any) -> Tensor:
    """Compute op(x, ΔW, Δb), over the random coordinates alone where that is faster, as it is for 1 % of them."""
    w, offset = weight.weight, _offset(bias)
    if w.index is None or operation not in SPARSE_OPS or isinstance(w.mean, SparseTensor):
        return operation(x, _offset(weight), offset, *args, **kwargs)
    product = sparse.linear if operation is F.linear else sparse.conv
    y = product(x, w.index, tuple(w.mean.shape), w.random_offset(weight.noise()), *args, **kwargs)
    return y if offset is None else y + along_channels(operation, offset, y)


@RULES.rule(F.bilinear, exact=True, assumes="as for linear")
def bilinear(operation: Operation, input1: Any, input2: Any, weight: Any, bias: Any = None) -> Tensor:
    """Compute y = x₁ᵀ W̄ x₂ + r ∘ (x₁ ∘ s)ᵀ ΔW (x₂ ∘ t)."""
    first, second = plain_input(input1), plain_input(input2)
    mean = operation(first, second, mean_of(weight), mean_of(bias))
    if weight_of(weight) is None and weight_of(bias) is None:
        return mean
    generator = _generator(weight, bias)
    signs = signs_like(mean, mean.dim() - 1, generator)
    if weight_of(weight) is None:
        offset: Tensor = _offset(bias)
        return mean + signs * offset
    first = first * signs_like(first, first.dim() - 1, generator)
    second = second * signs_like(second, second.dim() - 1, generator)
    return mean + signs * operation(first, second, _offset(weight), _offset(bias))


@RULES.rule(F.embedding, exact=True, assumes="as for linear")
def embedding(
    operation: Operation,
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """Take rows of the mean, and add rows of ΔW with random signs for each example and feature."""
    if max_norm is not None:
        return operation(input, weight.draw(), padding_idx, max_norm, *args, **kwargs)
    mean = operation(input, mean_of(weight), padding_idx, None, *args, **kwargs)
    rows = operation(input, _offset(weight), padding_idx, None, *args, **kwargs)
    return mean + rows * signs_like(rows, rows.dim() - 1, weight.generator)


@RULES.rule(F.batch_norm, exact=True, assumes="as for linear; statistics of a batch are those of all its draws")
def batch_norm(
    operation: Operation, input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None,
    *args: Any, **kwargs: Any,
) -> Tensor:  # fmt: skip
    """y = (γ + s ∘ Δγ) x̂ + β + r ∘ Δβ: without signs of their own the next norm would undo γ's and β's draw."""
    y: Tensor = operation(plain_input(input), running_mean, running_var, None, None, *args, **kwargs)
    if weight is not None:
        y = y * _flipped(weight, y)
    return y if bias is None else y + _flipped(bias, y)


def _flipped(value: Any, like: Tensor) -> Tensor:
    """A vector over channels, its noise with a sign for each example, shaped to broadcast over ``like``."""
    shape = (-1, *[1] * (like.dim() - 2))
    mean: Tensor = mean_of(value).view(shape)
    if not isinstance(value, StandIn):
        return mean
    offset: Tensor = _offset(value).view(shape)
    return mean + signs_like(like, 1, value.generator) * offset


def _offset(value: Any) -> Any:
    """ΔW of a stand-in's one draw in this pass, None for anything else."""
    return value.weight.offset(value.noise()) if isinstance(value, StandIn) else None


def _generator(*values: Any) -> torch.Generator | None:
    return next(value.generator for value in values if isinstance(value, StandIn))
