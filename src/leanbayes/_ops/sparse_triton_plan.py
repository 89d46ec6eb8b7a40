"""Plans for the kernels of Triton: which columns the rows of 16 targets have, computed once for each index.

Nothing here asks how the positions were chosen. Where blocks of 16 neighbouring outputs are stored, every column of the
forward plan is full. Where single weights are, a row has a column for each source that any of its 16 targets reads.
The share of the columns among all that a dense weight has (`Columns.fill`) says how much of the dense work is left.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import torch
from torch import Tensor

from leanbayes._ops.sparse_plan import Geometry, check_index, plan_for

__all__ = ["CHUNK", "TARGETS", "Columns", "TritonPlan", "triton_plan_of"]

TARGETS = 16  # of a row, as in the kernels
CHUNK = 16  # columns that a program takes at a time; with 32, two programs need all registers of a processor


@dataclass(frozen=True)
class Columns:
    """The columns of all rows, as arguments of the kernels.

    Attributes:
        place: for each stored value, its place among the packed weights, of which each column has `TARGETS`.
        pointer: where the columns of each row begin.
        channel: the source channel that a column reads.
        shifts: how far it reads from the origin, along each axis.
        groups: the number of rows of each remainder class; only strides have several classes, in the backward pass.
        gaps: the distances of the targets of one class, along each axis.
        steps: the distances of their sources.
        fill: the share of a dense weight that the columns take up.
    """

    place: Tensor
    pointer: Tensor
    channel: Tensor
    shifts: tuple[Tensor, Tensor, Tensor]
    groups: int
    gaps: tuple[int, int, int]
    steps: tuple[int, int, int]
    fill: float

    @property
    def rows(self) -> int:
        """The number of rows of all classes."""
        return len(self.pointer) - 1

    def pack(self, *values: Tensor) -> Tensor:
        """Return weights as the kernels take them, of shape (number of weights, columns, `TARGETS`)."""
        packed = values[0].new_zeros(len(values), len(self.channel) * TARGETS)
        for weights, row in zip(values, packed, strict=True):
            row.index_copy_(0, self.place, weights.detach())
        return packed.view(len(values), -1, TARGETS)


@dataclass(frozen=True)
class TritonPlan:
    """The columns of the forward and of the backward pass, and the chunks that gradients of the values are cut into.

    Attributes:
        forward: rows are outputs, columns read inputs.
        backward: rows are inputs, columns read outputs.
        chunks: the row of each chunk of the forward columns, and the column at which it begins.
    """

    forward: Columns
    backward: Columns
    chunks: tuple[Tensor, Tensor]


def triton_plan_of(index: Tensor, geometry: Geometry) -> TritonPlan:
    """Return the plan for an index, which is computed anew only for a new index or another kind of operation.

    It is the same for inputs of every size. Computing it copies some counts to the host, so a GPU waits once.
    """
    plan: TritonPlan = plan_for(index, _without_sizes(geometry), _plan)
    return plan


@lru_cache(1024)
def _without_sizes(geometry: Geometry) -> Geometry:
    first, second, third = (replace(axis, size=1, after=0) for axis in geometry.axes)
    return replace(geometry, axes=(first, second, third))


def _plan(index: Tensor, geometry: Geometry) -> TritonPlan:
    check_index(index, geometry, on_every_device=True)
    outputs, inputs, taps = geometry.outputs, geometry.inputs, prod(geometry.taps)
    per_group = inputs // geometry.groups
    where, tap = index.long() // taps, index.long() % taps
    output, channel = where // per_group, where % per_group
    channel = channel + output // (outputs // geometry.groups) * per_group
    full = outputs * per_group * taps
    strides = [axis.stride for axis in geometry.axes]
    ahead = [torch.arange(axis.taps) * axis.dilation - axis.before for axis in geometry.axes]
    # Input j is read by the output (j + before − t·dilation)/stride, so a tap reads outputs for inputs of one class.
    classes = [shift % step for shift, step in zip(ahead, strides, strict=True)]
    back = [(kind - shift) // step for kind, shift, step in zip(classes, ahead, strides, strict=True)]
    places = torch.cartesian_prod(*(torch.arange(axis.taps) for axis in geometry.axes)).unbind(1)

    def of_taps(by_axis: Sequence[Tensor]) -> list[Tensor]:
        return [values[place].to(index.device) for values, place in zip(by_axis, places, strict=True)]

    kinds = of_taps(classes)
    kind = (kinds[0] * strides[1] + kinds[1]) * strides[2] + kinds[2]
    once, gaps = (1, 1, 1), _three(strides)
    forward = _columns(output, channel, tap, torch.zeros_like(tap), of_taps(ahead), outputs, inputs, full, once, gaps)
    backward = _columns(channel, output, tap, kind[tap], of_taps(back), inputs, outputs, full, gaps, once)
    return TritonPlan(forward, backward, _chunks(forward.pointer))


def _columns(
    target: Tensor,
    source: Tensor,
    tap: Tensor,
    kind: Tensor,
    shifts: list[Tensor],
    targets: int,
    sources: int,
    full: int,
    gaps: tuple[int, int, int],
    steps: tuple[int, int, int],
) -> Columns:
    """Sort stored weights by row, source and tap; weights of one row that agree in both share a column."""
    groups, taps = -(-targets // TARGETS), len(shifts[0])
    rows = groups * prod(gaps)
    row = kind * groups + target // TARGETS
    column, place = torch.unique((row * sources + source) * taps + tap, return_inverse=True)
    begin = torch.arange(rows + 1, device=target.device) * (sources * taps)
    tap_of = column % taps
    first, second, third = (shift[tap_of].int() for shift in shifts)
    return Columns(
        place * TARGETS + target % TARGETS,
        torch.searchsorted(column, begin).int(),
        (column // taps % sources).int(),
        (first, second, third),
        groups,
        gaps,
        steps,
        len(column) * TARGETS / max(1, full),
    )


def _chunks(pointer: Tensor) -> tuple[Tensor, Tensor]:
    counts = (pointer.diff() + CHUNK - 1) // CHUNK
    row = torch.repeat_interleave(counts)
    before = counts.cumsum(0) - counts
    number = torch.arange(len(row), device=row.device) - before[row]
    return row.int(), (pointer[row] + number * CHUNK).int()


def _three(values: Sequence[int]) -> tuple[int, int, int]:
    first, second, third = values
    return first, second, third
