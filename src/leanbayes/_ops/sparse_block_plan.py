"""Plans for weights that are stored in blocks: the order in which the kernels walk over the blocks.

A block is ``size`` stored weights at neighbouring output channels, from a multiple of ``size`` on, at one input channel
and one tap. Such a weight needs no other storage: `in_blocks` tells from the positions whether they are in blocks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from leanbayes._ops.sparse_plan import Axis, Geometry, check_index, check_size, forward_axis, plan_for, reach_of

__all__ = ["BlockPlan", "block_plan_of", "in_blocks", "kernel_block"]

_SIZES = (16, 8)  # of the blocks that the kernels take; larger blocks consist of these


@dataclass(frozen=True)
class BlockPlan:
    """A walk over the blocks, sorted by band of output channels, tap and input channel.

    Attributes:
        size: the size of a block, which is also the number of channels of a band.
        order: which stored value comes at each step of the walk; the values of a block are consecutive.
        pointer: where the blocks of each band and tap begin.
        offset: how far the inputs of each block are from the origin of an output.
        cleared: for each row of the output, how many rows of the input it and the rows before it reach.
    """

    geometry: Geometry
    size: int
    order: Tensor
    pointer: Any
    offset: Any
    tables: tuple[Any, Any, Any]
    reach: Any
    cleared: Any

    @property
    def bands(self) -> int:
        """The number of bands of output channels."""
        return self.geometry.outputs // self.size

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments in the order of `leanbayes._ops.sparse_block_kernels.gather`."""
        return self.size, self.pointer, self.offset, *self.tables, self.geometry.taps, self.geometry.sizes


def in_blocks(index: Tensor, shape: tuple[int, ...], size: int, groups: int = 1) -> bool:
    """Return whether positions are whole blocks of ``size`` output channels that do not cross a group of channels.

    Args:
        index: the sorted flat positions in the weight.
        shape: the shape of the weight; its first axis holds the output channels.
        size: the size of a block.
        groups: the number of groups of channels of the convolution.

    >>> in_blocks(torch.tensor([1, 4]), (2, 3), 2), in_blocks(torch.tensor([1, 5]), (2, 3), 2)
    (True, False)
    """
    if shape[0] % (groups * size) or len(index) % size:
        return False
    if not len(index):
        return True
    if index[0] < 0 or index[-1] >= prod(shape) or bool((index.diff() <= 0).any()):
        return False
    row, column = _split(index.long(), shape)
    counts = torch.bincount(row, minlength=shape[0]).view(-1, size)
    if bool((counts != counts[:, :1]).any()):
        return False
    # In the order of the positions, a band has as many columns in each of its rows; they must be the same columns.
    band, first = row // size, torch.cumsum(counts.flatten(), 0) - counts.flatten()
    place_in_row = torch.arange(len(row), device=row.device) - first[row]
    return bool((column == column[first[band * size] + place_in_row]).all())


def kernel_block(index: Tensor, geometry: Geometry) -> int:
    """Return the size of the blocks that the kernels can take these positions in; 0 if they are in no such blocks.

    The answer is found once for each index. It needs a copy to the host if the index lies elsewhere.
    """
    version = 0 if index.is_inference() else index._version
    with _LOCK:
        known = _SIZES_OF.get(index)
        if known is not None and known[0] == (version, geometry.outputs, geometry.groups):
            size: int = known[1]
            return size
    per_output = geometry.inputs // geometry.groups * prod(geometry.taps)
    shape = (geometry.outputs, per_output)
    size = next((s for s in _SIZES if in_blocks(index, shape, s, geometry.groups)), 0)
    with _LOCK:
        _SIZES_OF[index] = (version, geometry.outputs, geometry.groups), size
    return size


def block_plan_of(index: Tensor, geometry: Geometry) -> BlockPlan:
    """Return the plan for the kernels for blocks, which is computed anew only for a new index or geometry."""
    build: Callable[[Tensor, Geometry], BlockPlan] = _plan
    plan: BlockPlan = plan_for(index, geometry, build)
    return plan


_SIZES_OF: Any = WeakTensorKeyDictionary()
_LOCK = Lock()


def _split(index: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    per_output = prod(shape[1:])
    return index // per_output, index % per_output


def _plan(index: Tensor, geometry: Geometry) -> BlockPlan:
    check_index(index, geometry)
    check_size(geometry)
    size = kernel_block(index, geometry)
    if not size:
        raise ValueError("the positions are in no blocks")
    count, per_group = prod(geometry.taps), geometry.inputs // geometry.groups
    output, where = np.divmod(np.asarray(index.detach(), dtype=np.int64), per_group * count)
    channel, tap = np.divmod(where, count)
    band = output // size
    order = np.lexsort((output, channel, tap, band))
    heads = order[::size]  # the first weight of each block
    band, channel, tap, output = band[heads], channel[heads], tap[heads], output[heads]
    pointer = np.zeros(geometry.outputs // size * count + 1, np.int64)
    np.cumsum(np.bincount(band * count + tap, minlength=len(pointer) - 1), out=pointer[1:])
    offset = (channel + output // (geometry.outputs // geometry.groups) * per_group) * prod(geometry.sizes)
    sizes = geometry.sizes
    for axis, t, step in zip(geometry.axes, np.unravel_index(tap, geometry.taps), _steps(sizes), strict=True):
        offset += t * axis.dilation * step
    tables: Any = tuple(forward_axis(axis)[0] for axis in geometry.axes)
    return BlockPlan(
        geometry, size, torch.from_numpy(order), pointer, offset.astype(np.int32), tables, reach_of(geometry),
        _cleared(*geometry.axes[:2]),
    )  # fmt: skip


def _steps(sizes: tuple[int, int, int]) -> tuple[int, int, int]:
    return sizes[1] * sizes[2], sizes[2], 1


def _cleared(depth: Axis, height: Axis) -> Any:
    """Return how many rows of the input the outputs up to each row read: whole planes if there are several."""
    planes, rows = _reached(depth), _reached(height)
    if depth.size == 1 and depth.positions == 1:
        return rows
    return np.repeat(planes, height.positions) * height.size


def _reached(axis: Axis) -> Any:
    last = np.arange(axis.positions) * axis.stride - axis.before + (axis.taps - 1) * axis.dilation
    return np.clip(last + 1, 0, axis.size).astype(np.int64)
