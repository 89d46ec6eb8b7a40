"""How the kernels of Triton are started for one product: the layout of tensors, the size of tiles, all arguments.

Tensors stay in the layout in which they come, if the batch or the last axis of space is innermost in memory; results
have the same layout. A linear map needs the batch innermost, since the inputs that it reads are scattered.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from leanbayes._ops import gpu
from leanbayes._ops.sparse_plan import Geometry
from leanbayes._ops.sparse_products import innermost
from leanbayes._ops.sparse_triton_plan import CHUNK, TARGETS, TritonPlan, triton_plan_of

__all__ = ["Launch"]

_TILE = 128  # numbers of the batch and of space that a program takes at a time; half of them where it reduces over them
_PROGRAMS = 1024  # that `correlate` starts at least, if there is work for them: several for each processor of a GPU
_LEAST_STEPS = 8  # tiles of one program of `correlate`, so that sums over programs stay cheap


@dataclass(frozen=True)
class Launch:
    """A linear map or a convolution by a sparse weight, for activations of shape (batch, channels, …) in one layout.

    Several weights, which share their positions, are the weights of equal parts of the batch.
    """

    geometry: Geometry
    plan: TritonPlan
    batch_innermost: bool

    @staticmethod
    def of(x: Tensor, index: Tensor, geometry: Geometry) -> "Launch":
        """Return the launch for an input: it keeps the batch innermost if the input has it so, or is a matrix."""
        is_innermost = x.movedim(0, -1).is_contiguous() and not x.is_contiguous()
        return Launch(geometry, triton_plan_of(index, geometry), geometry.is_linear or is_innermost)

    def laid(self, x: Tensor) -> Tensor:
        """Return a tensor in the layout of this product, without a copy if it is so already."""
        return innermost(x).movedim(-1, 0) if self.batch_innermost else x.contiguous()

    def forward(self, x: Tensor, weights: tuple[Tensor, ...], variance: Tensor | None) -> tuple[Tensor, ...]:
        """Return op(x, W), and op(x², σ²) if there are variances."""
        extents = self.geometry.positions[5 - x.dim() :]
        out = self._empty(x, self.geometry.outputs, extents)
        spread = None if variance is None else self._empty(x, self.geometry.outputs, extents)
        self._gather(False, x, None, None, weights, variance, out, spread)
        return (out,) if spread is None else (out, spread)

    def input_gradient(
        self, x: Tensor, weights: tuple[Tensor, ...], variance: Tensor | None, g: Tensor, q: Tensor | None
    ) -> Tensor:
        """Return opᵀ(g, W) + 2x·opᵀ(q, σ²) by the transposed plan, whose result is the same in every run."""
        result = self._empty(x, self.geometry.inputs, tuple(x.shape[2:]))
        self._gather(True, g, q, None if q is None else x, weights, variance, result, None)
        return result

    def added_input_gradient(
        self, x: Tensor, weights: tuple[Tensor, ...], variance: Tensor | None, g: Tensor, q: Tensor | None
    ) -> Tensor:
        """Return the same by the plan of the forward pass and atomic additions in float32, whose order is open."""
        from leanbayes._ops import sparse_triton_kernels

        geometry, columns = self.geometry, self.plan.forward
        result = torch.zeros_like(x, dtype=torch.float32)  # keeps the strides
        batch, positions = len(x) // len(weights), prod(geometry.positions)
        if not (result.numel() and g.numel() and len(columns.channel)):
            return result.to(x.dtype)
        block = _tile(batch * positions, _TILE)
        tiles = _ceil(batch * positions, block)
        packed = columns.pack(*weights)
        with _on(x):
            sparse_triton_kernels.scatter[(columns.rows * tiles * len(weights),)](
                g, g if q is None else q, x, packed, packed if variance is None else columns.pack(variance), result,
                columns.pointer, columns.channel, *columns.shifts,
                columns.rows, tiles, len(columns.channel), geometry.outputs, batch, positions, *geometry.positions[1:],
                *columns.steps, *geometry.sizes,
                *self._strides(len(x), geometry.inputs, geometry.sizes),
                *self._strides(len(x), geometry.outputs, geometry.positions),
                two=q is not None, block_k=CHUNK, block_n=block, **self._options(x, False),
            )  # fmt: skip
        return result.to(x.dtype)

    def value_gradients(
        self, x: Tensor, g: Tensor, q: Tensor | None, parts: int
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return Σ gx of the first weight, Σ qx² of the variances, and Σ gx of the second weight if there is one."""
        from leanbayes._ops import sparse_triton_kernels

        geometry, columns, (chunk_row, chunk_start) = self.geometry, self.plan.forward, self.plan.chunks
        batch, positions, chunks = len(x) // parts, prod(geometry.positions), len(chunk_row)
        numbers = batch * positions
        if not chunks or not numbers:
            nothing = x.new_zeros(len(columns.place))
            return nothing, None if q is None else nothing.clone(), None if parts == 1 else nothing.clone()
        block = _tile(numbers, _TILE // 2)
        tiles = _ceil(numbers, block)
        splits = max(1, min(_ceil(_PROGRAMS, chunks * parts), tiles // _LEAST_STEPS))
        steps = _ceil(tiles, splits)
        splits = _ceil(tiles, steps)
        shape = (1 if q is None else 2, parts, splits, len(columns.channel) * TARGETS)
        sums = torch.empty(shape, dtype=torch.float32, device=x.device)
        with _on(x):
            sparse_triton_kernels.correlate[(chunks * splits * parts,)](
                x, g, g if q is None else q, sums[0], sums[-1],
                columns.pointer, columns.channel, *columns.shifts, chunk_row, chunk_start,
                chunks, splits, steps, len(columns.channel), geometry.outputs, batch, positions,
                *geometry.positions[1:], *columns.steps, *geometry.sizes,
                *self._strides(len(x), geometry.inputs, geometry.sizes),
                *self._strides(len(x), geometry.outputs, geometry.positions),
                two=q is not None, block_k=CHUNK, block_n=block, **self._options(x, False),
            )  # fmt: skip
        gradients = sums.sum(2).index_select(2, columns.place).to(x.dtype)
        return gradients[0, 0], None if q is None else gradients[1, 0], None if parts == 1 else gradients[0, 1]

    def _gather(
        self,
        back: bool,
        x: Tensor,
        y: Tensor | None,
        by: Tensor | None,
        weights: tuple[Tensor, ...],
        variance: Tensor | None,
        out: Tensor,
        spread: Tensor | None,
    ) -> None:
        """Fill the results of the kernel `gather`, from inputs to outputs or ``back``."""
        from leanbayes._ops import sparse_triton_kernels  # Triton is loaded only by those who have a GPU

        geometry, columns = self.geometry, self.plan.backward if back else self.plan.forward
        ends = [(geometry.inputs, geometry.sizes), (geometry.outputs, geometry.positions)]
        (sources, source), (targets, target) = reversed(ends) if back else ends
        batch = len(x) // len(weights)
        span = [_ceil(extent, gap) for extent, gap in zip(target, columns.gaps, strict=True)]
        if not out.numel():
            return
        block = _tile(batch * prod(span), _TILE)
        tiles = _ceil(batch * prod(span), block)
        packed = columns.pack(*weights)
        of_variance = packed if variance is None else columns.pack(variance)
        with _on(x):
            sparse_triton_kernels.gather[(columns.rows * tiles * len(weights),)](
                x, x if y is None else y, x if by is None else by, packed, of_variance,
                out, out if spread is None else spread,
                columns.pointer, columns.channel, *columns.shifts,
                columns.rows, columns.groups, tiles, len(columns.channel), targets, batch, prod(span), *span[1:],
                *columns.gaps, *columns.steps, *target, *source,
                *self._strides(len(x), sources, source), *self._strides(len(x), targets, target),
                two=variance is not None, squares=y is None, block_k=CHUNK, block_n=block,
                **self._options(x, back),
            )  # fmt: skip

    def _options(self, x: Tensor, back: bool) -> dict[str, Any]:
        tensor_cores = gpu.tensor_cores(x.dtype, self.geometry.is_linear)
        free = [not (a.before or a.after or (back and a.taps > 1)) for a in self.geometry.axes]
        return {
            "innermost": self.batch_innermost,
            "checked": 3 - (free.index(False) if False in free else 3),
            "precision": "tf32" if tensor_cores else "ieee",
            "widen": gpu.interpreted() and x.dtype == torch.bfloat16,
        }

    def _empty(self, like: Tensor, channels: int, extents: tuple[int, ...]) -> Tensor:
        if self.batch_innermost:
            return like.new_empty(channels, *extents, len(like)).movedim(-1, 0)
        return like.new_empty(len(like), channels, *extents)

    def _strides(self, batch: int, channels: int, extents: tuple[int, int, int]) -> tuple[int, ...]:
        """Return the strides of channels, of the three axes, and of examples."""
        deep, high, wide = extents
        unit = batch if self.batch_innermost else 1
        apart = 1 if self.batch_innermost else channels * deep * high * wide
        return deep * high * wide * unit, high * wide * unit, wide * unit, unit, apart


def _on(x: Tensor) -> AbstractContextManager[Any]:
    """Triton starts kernels on the current device, which need not be that of the tensors."""
    return torch.cuda.device_of(x) if x.is_cuda else nullcontext()


def _tile(numbers: int, most: int) -> int:
    return min(most, max(16, 1 << (numbers - 1).bit_length()))


def _ceil(numbers: int, size: int) -> int:
    return -(-numbers // size)
