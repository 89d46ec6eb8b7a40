"""Plans: the order in which kernels walk over the non-zeros of a weight, computed once for each index."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from leanbayes.errors import InputError

__all__ = [
    "Axis",
    "Csr",
    "CsrPlan",
    "Geometry",
    "Plan",
    "Walk",
    "check_index",
    "check_size",
    "csr_of",
    "forward_axis",
    "plan_for",
    "plan_of",
    "reach_of",
]

_KEPT = 4  # plans for one index, so that as many sizes of the input can take turns


@dataclass(frozen=True)
class Axis:
    """One axis of a convolution. Output i at tap t reads the input i·stride − before + t·dilation."""

    size: int
    taps: int = 1
    stride: int = 1
    before: int = 0
    after: int = 0
    dilation: int = 1

    @property
    def positions(self) -> int:
        """The number of outputs along the axis."""
        return (self.size + self.before + self.after - self.dilation * (self.taps - 1) - 1) // self.stride + 1


@dataclass(frozen=True)
class Geometry:
    """A linear map (three axes of size 1) or a convolution of rank 1, 2 or 3 (with axes of size 1 in front)."""

    outputs: int
    inputs: int
    groups: int
    axes: tuple[Axis, Axis, Axis]

    @property
    def is_linear(self) -> bool:
        """Whether the operation is one product of matrices."""
        return self.groups == 1 and self.axes == (Axis(1),) * 3

    @property
    def dense_products(self) -> int:
        """The number of products that the dense operation takes for one example."""
        return self.outputs * self.inputs // self.groups * prod(self.taps) * prod(self.positions)

    @property
    def taps(self) -> tuple[int, int, int]:
        """The extents of the kernel."""
        return self.axes[0].taps, self.axes[1].taps, self.axes[2].taps

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The extents of the input."""
        return self.axes[0].size, self.axes[1].size, self.axes[2].size

    @property
    def positions(self) -> tuple[int, int, int]:
        """The extents of the output."""
        return self.axes[0].positions, self.axes[1].positions, self.axes[2].positions


@dataclass(frozen=True)
class Walk:
    """The non-zeros sorted by target channel and tap, and where each finds its source, as arguments of a kernel."""

    order: Tensor  # which value comes at each step of the walk
    pointer: Any
    offset: Any
    tables: tuple[Any, Any, Any]
    taps: tuple[int, int, int]
    sizes: tuple[int, int, int]

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments in the order of `leanbayes._ops.sparse_kernels.gather`."""
        return self.pointer, self.offset, *self.tables, self.taps, self.sizes


@dataclass(frozen=True)
class Plan:
    """A walk from input to output for the forward pass, and one from output to input for the backward pass."""

    geometry: Geometry
    forward: Walk
    backward: Walk
    reach: Any


@dataclass(frozen=True)
class Csr:
    """A matrix by rows, as torch stores it; ``order`` is None if the values are sorted by rows already."""

    order: Tensor | None
    rows: Tensor
    columns: Tensor
    shape: tuple[int, int]


@dataclass(frozen=True)
class CsrPlan:
    """The weight as a CSR matrix, and its transpose."""

    forward: Csr
    backward: Csr


_PLANS: Any = WeakTensorKeyDictionary()
_LOCK = Lock()


def plan_of(index: Tensor, geometry: Geometry) -> Plan:
    """Return the plan for the kernels of numba, which is computed anew only for a new index or geometry."""
    plan: Plan = plan_for(index, geometry, _plan)
    return plan


def csr_of(index: Tensor, geometry: Geometry) -> CsrPlan:
    """Return the plan for sparse matrices of torch, which is computed without a copy to the host."""
    plan: CsrPlan = plan_for(index, geometry, _csr_plan)
    return plan


def plan_for(index: Tensor, geometry: Geometry, build: Callable[[Tensor, Geometry], Any]) -> Any:
    """Return the plan that ``build`` makes, from the last few plans of the index if it is there and has not changed."""
    version = 0 if index.is_inference() else index._version
    with _LOCK:
        known, plans = _PLANS.get(index, (version, {}))
        if known != version:  # a change in place makes it another index
            plans = {}
        plan = plans.pop((build, geometry), None) or build(index, geometry)
        plans[build, geometry] = plan  # the latest is last
        while len(plans) > _KEPT:
            plans.pop(next(iter(plans)))
        _PLANS[index] = version, plans
    return plan


def check_index(index: Tensor, geometry: Geometry, on_every_device: bool = False) -> None:
    """Check that an index is sorted, by default only where that forces no copy to the host."""
    size = geometry.outputs * geometry.inputs // geometry.groups * prod(geometry.taps)
    if (index.device.type != "cpu" and not on_every_device) or not len(index):
        return
    if index[0] < 0 or index[-1] >= size or bool((index.diff() <= 0).any()):
        raise InputError(
            f"an index must be sorted, have no repeats and lie within 0 to {size - 1}; torch.unique makes such an index"
        )


def check_size(geometry: Geometry) -> None:
    """Check that 32 bits are enough for the offsets of a plan."""
    if max(geometry.inputs * prod(geometry.sizes), geometry.outputs * prod(geometry.positions)) >= 2**31:
        raise InputError(
            'an activation of 2³¹ numbers for each example is too large for this kernel; choose kernel="dense"'
        )


def _csr_plan(index: Tensor, geometry: Geometry) -> CsrPlan:
    check_index(index, geometry)
    outputs, inputs = geometry.outputs, geometry.inputs
    row, column = index.long() // inputs, index.long() % inputs
    order = torch.argsort(column, stable=True)
    return CsrPlan(
        Csr(None, _starts(row, outputs), column.int(), (outputs, inputs)),
        Csr(order, _starts(column[order], inputs), row[order].int(), (inputs, outputs)),
    )


def _starts(sorted_rows: Tensor, rows: int) -> Tensor:
    return torch.searchsorted(sorted_rows, torch.arange(rows + 1, device=sorted_rows.device)).int()


def _plan(index: Tensor, geometry: Geometry) -> Plan:
    check_index(index, geometry)
    check_size(geometry)
    per_group, count = geometry.inputs // geometry.groups, prod(geometry.taps)
    where, tap = np.divmod(np.asarray(index.detach(), dtype=np.int64), count)
    output, channel = np.divmod(where, per_group)
    channel += output // (geometry.outputs // geometry.groups) * per_group
    tap = np.stack(np.unravel_index(tap, geometry.taps))
    ahead = [forward_axis(axis) for axis in geometry.axes]
    back = [_backward_axis(axis) for axis in geometry.axes]
    return Plan(
        geometry,
        _walk(output, channel, tap, geometry.outputs, ahead, geometry.taps, geometry.sizes),
        _walk(channel, output, tap, geometry.inputs, back, geometry.taps, geometry.positions),
        reach_of(geometry),
    )


def _walk(target: Any, source: Any, tap: Any, targets: int, axes: Any, taps: Any, sizes: Any) -> Walk:
    tables, shifts, ranks = zip(*axes, strict=True)
    ranked = np.ravel_multi_index([rank[t] for rank, t in zip(ranks, tap, strict=True)], taps)
    order = np.lexsort((source, ranked, target))
    count = prod(taps)
    pointer = np.zeros(targets * count + 1, np.int64)
    np.cumsum(np.bincount(target * count + ranked, minlength=targets * count), out=pointer[1:])
    offset = source * prod(sizes)
    for shift, t, step in zip(shifts, tap, (sizes[1] * sizes[2], sizes[2], 1), strict=True):
        offset += shift[t] * step
    return Walk(torch.from_numpy(order), pointer, offset[order].astype(np.int32), tables, taps, sizes)


def _inside(position: Any, size: int) -> Any:
    return (position >= 0) & (position < size)


def reach_of(geometry: Geometry) -> Any:
    """Return, for each axis and tap, the first output that the tap contributes to, and the one after the last."""
    reach = np.zeros((3, 2, max(geometry.taps)), np.int64)
    for i, axis in enumerate(geometry.axes):
        origin = np.arange(axis.positions) * axis.stride - axis.before
        for t in range(axis.taps):
            inside = np.flatnonzero(_inside(origin + t * axis.dilation, axis.size))
            reach[i, :, t] = (inside[0], inside[-1] + 1) if len(inside) else (0, 0)
    return reach


def forward_axis(axis: Axis) -> tuple[Any, Any, Any]:
    """Return the origin and the taps inside the input for each output, the shift and the rank of each tap."""
    origin = np.arange(axis.positions) * axis.stride - axis.before
    taps = np.arange(axis.taps)
    shift = taps * axis.dilation
    return _table(origin, shift, True, axis.size), shift, taps


def _backward_axis(axis: Axis) -> tuple[Any, Any, Any]:
    """Return the same as `forward_axis` with inputs and outputs exchanged.

    Input j is read by the output (j + before − t·dilation)/stride, if that is a whole number. Taps are sorted by their
    remainder, so that the taps which meet one input are consecutive.
    """
    at, taps = np.arange(axis.size) + axis.before, np.arange(axis.taps)
    order = np.lexsort((taps, taps * axis.dilation % axis.stride))
    shift = -(taps * axis.dilation // axis.stride)
    whole = at[:, None] % axis.stride == (taps * axis.dilation % axis.stride)[order]
    rank = np.empty_like(order)
    rank[order] = taps
    return _table(at // axis.stride, shift[order], whole, axis.positions), shift, rank


def _table(origin: Any, shift: Any, allowed: Any, size: int) -> Any:
    inside = allowed & _inside(origin[:, None] + shift, size)
    first = np.where(inside.any(1), inside.argmax(1), 0)
    return np.stack([origin, first, first + inside.sum(1)]).astype(np.int64)
