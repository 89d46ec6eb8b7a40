"""Operations that move, copy or choose entries: mean and variance alike, and the shared fraction with them."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.propagate.linear_ops import Operation
from leanbayes.propagate.moments.shared import common_axes, full_fraction, lengthen, shorten
from leanbayes.propagate.moments.tensor import (
    RULES,
    MomentTensor,
    Ties,
    expected_of,
    first_random,
    missing,
    only_first,
    parts_of,
)
from leanbayes.propagate.moments.ties import joined, rearranged, scaled

__all__ = ["concatenate", "convert", "expand", "pad", "rearrange", "set_item", "stack"]


def _both(*names: str) -> list[Any]:
    """The function and the method of these names, as far as they exist."""
    found = [getattr(home, name, None) for name in names for home in (torch, Tensor)]
    return [operation for operation in found if operation is not None]


@RULES.rule(
    *_both("reshape", "view", "flatten", "unflatten", "permute", "transpose", "t", "swapaxes", "swapdims", "movedim"),
    *_both("squeeze", "unsqueeze", "chunk", "split", "unbind", "narrow", "select", "tensor_split", "view_as"),
    *_both("flip", "roll", "moveaxis", "unfold", "diagonal", "index_select", "gather", "repeat", "tile", "adjoint"),
    *_both("repeat_interleave", "reshape_as", "ravel", "take_along_dim"),
    *(F.pixel_shuffle, F.pixel_unshuffle, F.channel_shuffle, Tensor.__getitem__, torch.split_with_sizes),
    *(getattr(Tensor, name).__get__ for name in ("T", "mT", "H", "mH")),
    exact=True,
)
def rearrange(operation: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
    """The same for mean and variance."""
    if operation in (Tensor.view_as, Tensor.reshape_as):
        args = tuple(map(expected_of, args))
    x = only_first(operation, (input, *args, *kwargs.values()))
    means, variances = operation(x.expected, *args, **kwargs), operation(x.variance, *args, **kwargs)
    if x.shared is None:
        fractions: Any = None if isinstance(means, Tensor) else [None] * len(means)
    else:
        # the fraction, whose memory is laid out otherwise, may need a copy where the mean can be viewed
        same = torch.reshape if operation is Tensor.view else operation
        moved = same(lengthen(x.shared, x.shape), *_one_shape(same, args), **kwargs)
        fractions = shorten(moved) if isinstance(moved, Tensor) else [shorten(each) for each in moved]
    same = torch.reshape if operation is Tensor.view else operation
    ties = rearranged(x, lambda value: same(value, *_one_shape(same, args), **kwargs))
    if not isinstance(means, tuple | list):
        return x.like(means, variances, fractions).tied(ties).view_of(x)
    every = zip(means, variances, fractions, [None] * len(means) if ties is None else ties, strict=True)
    made = [x.like(m, v, f).tied(t).view_of(x) for m, v, f, t in every]
    return tuple(made) if isinstance(means, tuple) else made


def _one_shape(operation: Any, args: Any) -> Any:
    """``view(2, 3)`` as ``reshape`` takes it: ``((2, 3),)``."""
    return (args,) if operation is torch.reshape and args and isinstance(args[0], int) else args


@RULES.rule(
    *_both("clone", "detach", "contiguous", "to", "type_as", "float", "double", "half", "bfloat16", "type"),
    *_both("positive", "alias", "cpu", "cuda"),
    exact=True,
)
def convert(operation: Operation, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Another type, device or layout, or a copy; the fraction is common along the same axes."""
    args = tuple(map(expected_of, args))
    if not isinstance(input, MomentTensor):  # plain.to(random): only the type and device of the other matter
        return operation(input, *args, **kwargs)
    x = input
    if operation is Tensor.type and not args and not kwargs:  # asks for the name of the type
        return x.expected.type()
    shared = None if x.shared is None else x.shared.to(operation(x.shared[:0], *args, **kwargs))
    if shared is not None and operation in (torch.detach, Tensor.detach):
        shared = shared.detach()
    made = x.like(operation(x.expected, *args, **kwargs), operation(x.variance, *args, **kwargs), shared)
    if x.ties is not None and operation not in (torch.detach, Tensor.detach):
        made.tied(Ties(*(None if part is None else part.to(made.expected) for part in x.ties)))
    return made if operation in (torch.clone, Tensor.clone) else made.view_of(x)


@RULES.rule(*_both("expand", "expand_as", "broadcast_to"), exact=True)
def expand(operation: Operation, input: Any, *args: Any, **kwargs: Any) -> MomentTensor:
    """Copies of one number are shared in full along the new axes, but for the first, of the examples."""
    args = tuple(map(expected_of, args))
    mean, variance = (operation(part, *args, **kwargs) for part in (input.expected, input.variance))
    shared: Tensor | None = input.shared
    if input.setting.positions != "independent":
        copied = full_fraction(input.variance, mean.shape)
        if copied is not None:
            shared = copied
    if shared is not None:
        shared = shared.reshape([1] * (mean.dim() - shared.dim()) + list(shared.shape))
    made: MomentTensor = input.like(mean, variance, shared)
    return made.view_of(input)


@RULES.rule(torch.cat, torch.concat, torch.concatenate, exact=True)
def concatenate(operation: Operation, tensors: Any, dim: int = 0) -> MomentTensor:
    """Along one axis; plain tensors have variance 0."""
    random = first_random(*tensors)
    tensors = [tensor for tensor in tensors if tensor.shape != (0,)]
    mean = operation([expected_of(tensor) for tensor in tensors], dim)
    variances = [torch.zeros_like(t) if parts_of(t)[1] is None else t.variance for t in tensors]
    made = random.like(mean, operation(variances, dim), _joined_fraction(tensors, variances, mean.shape, dim))
    return made.tied(joined(tensors, dim % mean.dim(), random.setting.rank))


def _joined_fraction(tensors: Any, variances: list[Tensor], shape: Any, dim: int) -> Tensor | None:
    fractions = [parts_of(tensor)[2] for tensor in tensors]
    known = [fraction for fraction in fractions if fraction is not None]
    if not known:
        return None
    dim = dim % len(shape)
    axes = tuple(a for a in range(len(shape)) if shape[a] > 1 and all(fraction.shape[a] == 1 for fraction in known))
    if dim in axes:  # more positions: the mean of the fractions, weighted by variance
        totals = [variance.sum(axes, keepdim=True) for variance in variances]
        common = [f * total for f, total in zip(fractions, totals, strict=True) if f is not None]
        whole = torch.stack(totals).sum(0)
        return torch.stack(common).sum(0) / torch.where(whole > 0, whole, 1)
    pieces = []
    for tensor, fraction in zip(tensors, fractions, strict=True):
        size = [1 if a in axes else n for a, n in enumerate(tensor.shape)]
        pieces.append(known[0].new_zeros(size) if fraction is None else fraction.expand(size))
    return torch.cat(pieces, dim) if axes else None


@RULES.rule(torch.stack, exact=True)
def stack(operation: Any, tensors: Any, dim: int = 0) -> MomentTensor:
    """Along a new axis."""
    found: MomentTensor = concatenate(torch.cat, [tensor.unsqueeze(dim) for tensor in tensors], dim)
    return found.like(operation([expected_of(tensor) for tensor in tensors], dim), found.variance, found.shared)


@RULES.rule(F.pad, exact=True)
def pad(operation: Operation, input: Any, pad: Any, mode: str = "constant", value: Any = None) -> MomentTensor:
    """Constants have no variance; copies have that of what they copy."""
    x = only_first(operation, (input, value))
    mean = operation(x.expected, pad, mode, value)
    variance = operation(x.variance, pad, mode, None if value is None else 0)
    touched = {x.dim() - 1 - i // 2 for i, n in enumerate(pad) if n != 0}
    kept = touched <= set(common_axes(x.shape, x.shared))
    return x.like(mean, variance, x.shared if kept else None).tied(scaled(x, 1.0, variance) if kept else None)


@RULES.rule(Tensor.__setitem__, exact=True)
def set_item(operation: Operation, input: Any, index: Any, value: Any) -> Tensor:
    """x[index] = value, written into a copy."""
    random = first_random(input, value)
    if not isinstance(input, MomentTensor) or isinstance(index, MomentTensor):
        missing(operation, random, "a plain tensor cannot take random values, nor an index be random")
    mean, variance = input.expected.clone(), input.variance.clone()
    operation(mean, index, expected_of(value))
    operation(variance, index, 0 if parts_of(value)[1] is None else value.variance)
    return random.like(mean, variance)
