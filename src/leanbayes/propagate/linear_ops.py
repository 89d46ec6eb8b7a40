"""The operations that are linear in their weight: linear layers, and convolutions and transposed ones of every rank."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.posteriors import RandomWeight
from leanbayes.propagate.stand_in import StandIn, draw_of

__all__ = [
    "LINEAR_OPS",
    "Operation",
    "along_channels",
    "channel_axis",
    "for_each_axis",
    "mean_of",
    "plain_input",
    "signs_like",
    "weight_of",
]

Operation = Callable[..., Tensor]

LINEAR_OPS = (
    F.linear,
    F.conv1d,
    F.conv2d,
    F.conv3d,
    F.conv_transpose1d,
    F.conv_transpose2d,
    F.conv_transpose3d,
)
"""Operations ``op(input, weight, bias, …)`` in which every output is Σ wᵢxᵢ + b and uses no weight twice."""


def weight_of(value: Any) -> RandomWeight | None:
    """Return the random weight that a stand-in stands for, and None for any other value."""
    return value.weight if isinstance(value, StandIn) else None


def mean_of(value: Any) -> Any:
    """Return the mean of a stand-in, and a plain tensor as it is."""
    return value.weight.mean if isinstance(value, StandIn) else value


def channel_axis(operation: Any, tensor: Tensor) -> int:
    """Return the axis of an input or output that holds the features which the weight mixes."""
    if operation is F.linear:
        return tensor.dim() - 1
    rank = {F.conv1d: 1, F.conv_transpose1d: 1, F.conv2d: 2, F.conv_transpose2d: 2}.get(operation, 3)
    return tensor.dim() - rank - 1


def along_channels(operation: Any, vector: Tensor, like: Tensor) -> Tensor:
    """Shape a vector over output features so that it broadcasts over ``like``."""
    return vector.view(-1, *[1] * (like.dim() - 1 - channel_axis(operation, like)))


def for_each_axis(value: int | Sequence[int], rank: int) -> list[int]:
    """Return a stride, padding or dilation for each axis of space, from any spelling that torch allows.

    >>> for_each_axis(2, 3), for_each_axis((1, 2), 2)
    ([2, 2, 2], [1, 2])
    """
    values = [value] if isinstance(value, int) else list(value)
    return values * rank if len(values) == 1 else values


def plain_input(value: Any) -> Tensor:
    """Return the input as a plain tensor. A stand-in that is used as an input, not as a weight, gives its draw."""
    result: Tensor = draw_of(value)
    return result


def signs_like(tensor: Tensor, axis: int, generator: torch.Generator | None) -> Tensor:
    """Draw ±1 for each example and each feature along ``axis``; all other positions share it."""
    shape = [1] * tensor.dim()
    shape[axis] = tensor.shape[axis]
    if axis != 0:
        shape[0] = tensor.shape[0]
    bits = torch.randint(0, 2, shape, device=tensor.device, generator=generator)
    return bits.to(tensor.dtype) * 2 - 1
