"""The operations that are linear in their weight, listed once: linear, convolutions of every rank, transposed ones."""

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
"""``op(input, weight, bias, …)``: every output is Σ wᵢxᵢ + b, and no weight stands twice in one output."""


def weight_of(value: Any) -> RandomWeight | None:
    """The random weight that a stand-in stands for, None for anything else."""
    return value.weight if isinstance(value, StandIn) else None


def mean_of(value: Any) -> Any:
    """The mean of a stand-in; a plain tensor as it is."""
    return value.weight.mean if isinstance(value, StandIn) else value


def channel_axis(operation: Any, tensor: Tensor) -> int:
    """Which axis of an input or output holds the features that a weight mixes."""
    if operation is F.linear:
        return tensor.dim() - 1
    rank = {F.conv1d: 1, F.conv_transpose1d: 1, F.conv2d: 2, F.conv_transpose2d: 2}.get(operation, 3)
    return tensor.dim() - rank - 1


def along_channels(operation: Any, vector: Tensor, like: Tensor) -> Tensor:
    """A vector over output features, shaped to broadcast over ``like``."""
    return vector.view(-1, *[1] * (like.dim() - 1 - channel_axis(operation, like)))


def for_each_axis(value: int | Sequence[int], rank: int) -> list[int]:
    """A stride, padding or dilation, spelled as torch allows, for each axis of space.

    >>> for_each_axis(2, 3), for_each_axis((1, 2), 2)
    ([2, 2, 2], [1, 2])
    """
    values = [value] if isinstance(value, int) else list(value)
    return values * rank if len(values) == 1 else values


def plain_input(value: Any) -> Tensor:
    """An input is never treated as a weight: a stand-in that is used as one gives its draw."""
    result: Tensor = draw_of(value)
    return result


def signs_like(tensor: Tensor, axis: int, generator: torch.Generator | None) -> Tensor:
    """Random ±1 for each example and each feature along ``axis``, the same at all other positions."""
    shape = [1] * tensor.dim()
    shape[axis] = tensor.shape[axis]
    if axis != 0:
        shape[0] = tensor.shape[0]
    bits = torch.randint(0, 2, shape, device=tensor.device, generator=generator)
    return bits.to(tensor.dtype) * 2 - 1
