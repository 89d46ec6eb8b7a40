"""Operations that move, copy, choose or join entries: they act alike on mean and variance."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.propagate.linear_ops import Operation
from leanbayes.propagate.moments.correlations import INDEPENDENT, Correlations, Noise
from leanbayes.propagate.moments.kinds import RULES
from leanbayes.propagate.moments.tensor import (
    MomentTensor,
    expected_of,
    first_random,
    missing,
    only_first,
    variance_of,
)

__all__ = ["concatenate", "convert", "embedding", "expand", "pad", "set_item", "stack"]

_DETACH = (torch.detach, Tensor.detach)


def _both(*names: str) -> list[Any]:
    """Return the functions and the methods of these names, as far as torch has them."""
    spellings = [getattr(home, name, None) for name in names for home in (torch, Tensor)]
    return [operation for operation in spellings if operation is not None]


RULES.rearranging(
    *_both("reshape", "view", "flatten", "unflatten", "permute", "transpose", "t", "swapaxes", "swapdims", "movedim"),
    *_both("squeeze", "unsqueeze", "chunk", "split", "unbind", "narrow", "select", "tensor_split"),
    *_both("flip", "roll", "moveaxis", "unfold", "diagonal", "index_select", "gather", "repeat", "tile", "adjoint"),
    *_both("repeat_interleave", "ravel", "take_along_dim"),
    *(F.pixel_shuffle, F.pixel_unshuffle, F.channel_shuffle, Tensor.__getitem__, torch.split_with_sizes),
    *(getattr(Tensor, name).__get__ for name in ("T", "mT", "H", "mH")),
)
RULES.rearranging(Tensor.view_as, Tensor.reshape_as, shape_of=True)


@RULES.rule(
    *_both("clone", "detach", "contiguous", "to", "type_as", "float", "double", "half", "bfloat16", "type"),
    *_both("positive", "alias", "cpu", "cuda"),
    exact=True,
)
def convert(operation: Operation, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Convert to another type, device or layout, or copy."""
    args = tuple(map(expected_of, args))
    if not isinstance(input, MomentTensor):  # plain.to(random) asks only for the type and the device of the other
        return operation(input, *args, **kwargs)
    x = input
    if operation is Tensor.type and not args and not kwargs:  # asks for the name of the type
        return x.expected.type()
    mean, variance = operation(x.expected, *args, **kwargs), operation(x.variance, *args, **kwargs)
    correlations = x.correlations
    if operation in _DETACH:
        correlations = correlations.positions_alone().converted(Tensor.detach)
    else:
        correlations = correlations.converted(lambda part: part.to(mean))
    result = x.like(mean, variance, correlations)
    return result.moved_from(x) if operation in (torch.clone, Tensor.clone) else result.view_of(x)


@RULES.rule(*_both("expand", "expand_as", "broadcast_to"), exact=True)
def expand(operation: Operation, input: Any, *args: Any, **kwargs: Any) -> MomentTensor:
    """Expand a tensor; copies of a number share all of its noise."""
    args = tuple(map(expected_of, args))
    mean, variance = (operation(part, *args, **kwargs) for part in (input.expected, input.variance))
    fraction = input.correlations.broadcast(input.variance, mean.shape, input.setting)
    result: MomentTensor = input.like(mean, variance, Correlations(fraction))
    return result.view_of(input)


@RULES.rule(torch.cat, torch.concat, torch.concatenate, exact=True)
def concatenate(operation: Operation, tensors: Any, dim: int = 0) -> MomentTensor:
    """Join tensors along one axis; plain tensors have variance 0."""
    random = first_random(*tensors)
    tensors = [tensor for tensor in tensors if tensor.shape != (0,)]
    mean = operation([expected_of(tensor) for tensor in tensors], dim)
    parts = [
        (t.variance, t.correlations) if isinstance(t, MomentTensor) else (torch.zeros_like(t), INDEPENDENT)
        for t in tensors
    ]
    correlations = Correlations.joined(parts, mean.shape, dim % mean.dim(), random.setting.rank)
    return random.like(mean, operation([variance for variance, _ in parts], dim), correlations)


@RULES.rule(torch.stack, exact=True)
def stack(operation: Any, tensors: Any, dim: int = 0) -> MomentTensor:
    """Join tensors along a new axis."""
    joined: MomentTensor = concatenate(torch.cat, [tensor.unsqueeze(dim) for tensor in tensors], dim)
    mean = operation([expected_of(tensor) for tensor in tensors], dim)
    return joined.like(mean, joined.variance, joined.correlations.positions_alone())


@RULES.rule(F.pad, exact=True)
def pad(operation: Operation, input: Any, pad: Any, mode: str = "constant", value: Any = None) -> MomentTensor:
    """Pad with constants, which have no variance, or with copies, which have the variance of what they copy."""
    x = only_first(operation, (input, value))
    mean = operation(x.expected, pad, mode, value)
    variance = operation(x.variance, pad, mode, None if value is None else 0)
    padded = {x.dim() - 1 - i // 2 for i, n in enumerate(pad) if n != 0}
    if not padded <= set(x.correlations.common_axes(x.shape)):
        return x.like(mean, variance)
    return x.like(mean, variance, x.correlations.scaled(1.0, x.noise, Noise(variance)))


@RULES.rule(Tensor.__setitem__, exact=True)
def set_item(operation: Operation, input: Any, index: Any, value: Any) -> Tensor:
    """Write ``x[index] = value`` into a copy."""
    random = first_random(input, value)
    if not isinstance(input, MomentTensor) or isinstance(index, MomentTensor):
        missing(operation, random, "a plain tensor cannot take random values, nor an index be random")
    mean, variance = input.expected.clone(), input.variance.clone()
    operation(mean, index, expected_of(value))
    written = variance_of(value)
    operation(variance, index, 0 if written is None else written)
    return random.like(mean, variance)


@RULES.rule(F.embedding, exact=True, assumes="independent rows; two places with the same token count as independent")
def embedding(
    operation: Operation,
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: Any = None,
    *args: Any,
    **kwargs: Any,
) -> MomentTensor:
    """Look up rows of the mean and of the variance."""
    random = first_random(input, weight)
    if max_norm is not None or random is input:
        missing(operation, random, "max_norm rescales the table itself" if max_norm else "its indices are random")
    mean, variance = (
        operation(input, table, padding_idx, None, *args, **kwargs) for table in (weight.expected, weight.variance)
    )
    return random.like(mean, variance)
