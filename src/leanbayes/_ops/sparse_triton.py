"""Products over the stored weights on a GPU as one differentiable function, by the kernels of Triton.

Tensors stay in the layout in which they come, if the batch or the last axis of space is innermost in memory; results
have the same layout. A linear map needs the batch innermost, since the inputs that it reads are scattered.
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from leanbayes._ops.sparse_choice import Kernels
from leanbayes._ops.sparse_plan import Geometry
from leanbayes._ops.sparse_products import counted, innermost
from leanbayes._ops.sparse_triton_plan import CHUNK, Columns, triton_plan_of

__all__ = ["TritonProduct", "keeps_innermost", "tensor_cores"]

_TILE = 128  # numbers of the batch and of space that a program takes at a time; 64 where it reduces over them
_PROGRAMS = 1024  # that `correlate` starts at least, if there is work for them: several for each processor of a GPU
_LEAST_STEPS = 8  # tiles of one program of `correlate`, so that sums over programs stay cheap

Rows = tuple[Tensor, ...]


def tensor_cores(dtype: torch.dtype, is_linear: bool) -> bool:
    """Return whether torch multiplies numbers of a type on tensor cores: always half ones, float32 if TF32 is allowed.

    The settings are those of torch, which by default allow TF32 for convolutions and not for products of matrices.
    """
    if dtype != torch.float32:
        return dtype in (torch.float16, torch.bfloat16)
    cudnn: Any = torch.backends.cudnn
    setting: Any = torch.backends.cuda.matmul if is_linear else getattr(cudnn, "conv", cudnn)
    if hasattr(setting, "fp32_precision"):  # newer releases refuse to mix this setting with the older one
        return bool(setting.fp32_precision == "tf32")
    return bool(setting.allow_tf32)


def keeps_innermost(x: Tensor, geometry: Geometry) -> bool:
    """Return whether a product keeps the batch innermost in memory; otherwise the last axis of space is innermost."""
    return geometry.is_linear or (x.movedim(0, -1).is_contiguous() and not x.is_contiguous())


@dataclass(frozen=True)
class _Layout:
    """How activations of shape (batch, channels, …) lie in memory."""

    innermost: bool

    def laid(self, x: Tensor) -> Tensor:
        """Return the tensor in this layout, without a copy if it is so already."""
        return innermost(x).movedim(-1, 0) if self.innermost else x.contiguous()

    def empty(self, like: Tensor, channels: int, extents: tuple[int, ...]) -> Tensor:
        """Return a new tensor of this layout."""
        if self.innermost:
            return like.new_empty(channels, *extents, len(like)).movedim(-1, 0)
        return like.new_empty(len(like), channels, *extents)

    def strides(self, batch: int, channels: int, extents: tuple[int, int, int]) -> tuple[int, ...]:
        """Return the strides of channels, of the three axes, and of examples."""
        deep, high, wide = extents
        unit = batch if self.innermost else 1
        apart = 1 if self.innermost else channels * deep * high * wide
        return deep * high * wide * unit, high * wide * unit, wide * unit, unit, apart


class TritonProduct(torch.autograd.Function):
    """m = op(x, μ), and v = op(x², σ²) if there are variances (SSVI, Li et al. 2024, eq. 4).

    With ``other``, the first half of the batch meets μ and the second half meets ``other``. The results can be
    differentiated once.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        mean: Tensor,
        variance: Tensor | None,
        other: Tensor | None,
        index: Tensor,
        geometry: Geometry,
        kernels: Kernels,
    ) -> Rows:
        """Return one or two tensors of shape (batch, outputs, …) for x of shape (batch, inputs, …)."""
        layout = _Layout(keeps_innermost(x, geometry))
        x = layout.laid(x)
        ctx.save_for_backward(x, mean, variance, other, index)
        ctx.geometry, ctx.kernels, ctx.layout = geometry, kernels, layout
        ctx.flops = 2 * len(index) * prod(geometry.positions) * len(x) * (1 if variance is None else 2)
        with counted(ctx.flops), _on(x):
            columns = triton_plan_of(index, geometry).forward
            extents = geometry.positions[5 - x.dim() :]
            out = layout.empty(x, geometry.outputs, extents)
            spread = None if variance is None else layout.empty(x, geometry.outputs, extents)
            parts = (mean,) if other is None else (mean, other)
            shapes = (geometry.outputs, geometry.positions, geometry.inputs, geometry.sizes)
            _gather(geometry, layout, columns, *shapes, x, None, None, parts, variance, out, spread)
        return (out,) if spread is None else (out, spread)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return opᵀ(g, μ) + 2x·opᵀ(q, σ²) for the input, and SSVI's eq. 5 for the values."""
        x, mean, variance, other, index = ctx.saved_tensors
        g, *of_second = (ctx.layout.laid(gradient) for gradient in gradients)
        q = of_second[0] if of_second else None
        parts = (mean,) if other is None else (mean, other)
        of_input, of_values = None, (None, None, None)
        if ctx.needs_input_grad[0]:
            way = _INPUT_GRADIENTS[ctx.kernels.input]
            with counted(ctx.flops), _on(x):
                of_input = way(ctx.geometry, ctx.layout, index, x, parts, variance, g, q)
        if any(ctx.needs_input_grad[1:4]):
            with counted(ctx.flops), _on(x):
                of_values = _value_gradients(ctx.geometry, ctx.layout, index, x, g, q, len(parts))
        return of_input, *of_values, None, None, None


def _on(x: Tensor) -> AbstractContextManager[Any]:
    """Triton starts kernels on the current device, which need not be that of the tensors."""
    return torch.cuda.device_of(x) if x.is_cuda else nullcontext()


def _options(x: Tensor, geometry: Geometry, layout: _Layout) -> dict[str, Any]:
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return {
        "innermost": layout.innermost,
        "block_k": CHUNK,
        "precision": "tf32" if tensor_cores(x.dtype, geometry.is_linear) else "ieee",
        "widen": interpreted and x.dtype == torch.bfloat16,
    }


def _tile(numbers: int, most: int) -> int:
    return min(most, max(16, 1 << (numbers - 1).bit_length()))


def _ceil(numbers: int, size: int) -> int:
    return -(-numbers // size)


def _gather(
    geometry: Geometry,
    layout: _Layout,
    columns: Columns,
    targets: int,
    extents: tuple[int, int, int],
    sources: int,
    source_extents: tuple[int, int, int],
    x: Tensor,
    y: Tensor | None,
    by: Tensor | None,
    parts: Rows,
    variance: Tensor | None,
    out: Tensor,
    spread: Tensor | None,
) -> None:
    from leanbayes._ops import sparse_triton_kernels  # Triton is loaded only by those who have a GPU

    if not out.numel():
        return
    batch = len(x) // len(parts)
    span = tuple(_ceil(extent, gap) for extent, gap in zip(extents, columns.gaps, strict=True))
    numbers = batch * prod(span)
    block = _tile(numbers, _TILE)
    tiles = _ceil(numbers, block)
    packed = columns.pack(*parts)
    of_variance = packed if variance is None else columns.pack(variance)
    sparse_triton_kernels.gather[(columns.rows * tiles * len(parts),)](
        x, x if y is None else y, x if by is None else by, packed, of_variance, out, out if spread is None else spread,
        columns.pointer, columns.channel, *columns.shifts,
        columns.rows, columns.groups, tiles, len(columns.channel), targets, batch, prod(span), *span,
        *columns.gaps, *columns.steps, *extents, *source_extents,
        *layout.strides(len(x), sources, source_extents), *layout.strides(len(x), targets, extents),
        two=variance is not None, squares=y is None, block_n=block, **_options(x, geometry, layout),
    )  # fmt: skip


def _gathered_input_gradient(
    geometry: Geometry, layout: _Layout, index: Tensor, x: Tensor, parts: Rows, variance: Tensor | None, g: Tensor,
    q: Tensor | None,
) -> Tensor:  # fmt: skip
    """Return the gradient of the input by the transposed plan, whose result is the same in every run."""
    columns = triton_plan_of(index, geometry).backward
    result = layout.empty(x, geometry.inputs, tuple(x.shape[2:]))
    shapes = (geometry.inputs, geometry.sizes, geometry.outputs, geometry.positions)
    _gather(geometry, layout, columns, *shapes, g, q, None if q is None else x, parts, variance, result, None)
    return result


def _added_input_gradient(
    geometry: Geometry, layout: _Layout, index: Tensor, x: Tensor, parts: Rows, variance: Tensor | None, g: Tensor,
    q: Tensor | None,
) -> Tensor:  # fmt: skip
    """Return the gradient of the input by the plan of the forward pass and atomic additions in float32."""
    from leanbayes._ops import sparse_triton_kernels

    columns = triton_plan_of(index, geometry).forward
    result = torch.zeros_like(x, dtype=torch.float32)  # keeps the strides
    batch, positions = len(x) // len(parts), prod(geometry.positions)
    if result.numel() and g.numel() and len(index):
        block = _tile(batch * positions, _TILE)
        tiles = _ceil(batch * positions, block)
        packed = columns.pack(*parts)
        sparse_triton_kernels.scatter[(columns.rows * tiles * len(parts),)](
            g, g if q is None else q, x, packed, packed if variance is None else columns.pack(variance), result,
            columns.pointer, columns.channel, *columns.shifts,
            columns.rows, tiles, len(columns.channel), geometry.outputs, batch, positions, *geometry.positions,
            *columns.steps, *geometry.sizes,
            *layout.strides(len(x), geometry.inputs, geometry.sizes),
            *layout.strides(len(x), geometry.outputs, geometry.positions),
            two=q is not None, block_n=block, **_options(x, geometry, layout),
        )  # fmt: skip
    return result.to(x.dtype)


def _dense_input_gradient(
    geometry: Geometry, layout: _Layout, index: Tensor, x: Tensor, parts: Rows, variance: Tensor | None, g: Tensor,
    q: Tensor | None,
) -> Tensor:  # fmt: skip
    """Return the gradient of the input by the dense operation, where the transposed weight has too many columns."""
    shape = (geometry.outputs, geometry.inputs // geometry.groups, *geometry.taps[5 - x.dim() :])
    back = partial(_dense_back, geometry, index, shape)
    halves = [back(*pair) for pair in zip(x.chunk(len(parts)), g.chunk(len(parts)), parts, strict=True)]
    result = halves[0] if len(parts) == 1 else torch.cat(halves)
    if variance is not None and q is not None:
        result = result.addcmul(x, back(x, q, variance), value=2)
    return layout.laid(result)


def _dense_back(
    geometry: Geometry, index: Tensor, shape: tuple[int, ...], x: Tensor, g: Tensor, values: Tensor
) -> Tensor:
    weight = values.new_zeros(prod(shape)).index_copy_(0, index.long(), values.detach()).view(shape)
    if geometry.is_linear and x.dim() == 2:
        return g @ weight
    axes = geometry.axes[5 - x.dim() :]
    before, gaps, steps = [a.before for a in axes], [a.dilation for a in axes], [a.stride for a in axes]
    none = [0] * len(axes)
    even = all(axis.before == axis.after for axis in axes)
    padded = x if even else F.pad(x, [size for a in reversed(axes) for size in (a.before, a.after)])
    result: Tensor = torch.ops.aten.convolution_backward(
        g, padded, weight, None, steps, before if even else none, gaps, False, none, geometry.groups,
        [True, False, False],
    )[0]  # fmt: skip
    if not even:
        for axis, a in enumerate(axes):
            result = result.narrow(2 + axis, a.before, a.size)
    return result


def _value_gradients(
    geometry: Geometry, layout: _Layout, index: Tensor, x: Tensor, g: Tensor, q: Tensor | None, parts: int
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return Σ gx for the values, Σ qx² for the variances, and Σ gx over the second half for the other values."""
    from leanbayes._ops import sparse_triton_kernels

    plan = triton_plan_of(index, geometry)
    columns, (chunk_row, chunk_start) = plan.forward, plan.chunks
    batch, positions, chunks = len(x) // parts, prod(geometry.positions), len(chunk_row)
    numbers = batch * positions
    if not chunks or not numbers:
        nothing = x.new_zeros(len(index))
        return nothing, None if q is None else nothing.clone(), None if parts == 1 else nothing.clone()
    block = _tile(numbers, _TILE // 2)
    tiles = _ceil(numbers, block)
    splits = max(1, min(_ceil(_PROGRAMS, chunks * parts), tiles // _LEAST_STEPS))
    steps = _ceil(tiles, splits)
    splits = _ceil(tiles, steps)
    sums = x.new_empty(1 if q is None else 2, parts, splits, len(columns.channel) * 16, dtype=torch.float32)
    sparse_triton_kernels.correlate[(chunks * splits * parts,)](
        x, g, g if q is None else q, sums[0], sums[-1],
        columns.pointer, columns.channel, *columns.shifts, chunk_row, chunk_start,
        chunks, splits, steps, len(columns.channel), geometry.outputs, batch, positions, *geometry.positions,
        *columns.steps, *geometry.sizes,
        *layout.strides(len(x), geometry.inputs, geometry.sizes),
        *layout.strides(len(x), geometry.outputs, geometry.positions),
        two=q is not None, block_n=block, **_options(x, geometry, layout),
    )  # fmt: skip
    gradients = sums.sum(2).index_select(2, columns.place).to(x.dtype)
    return gradients[0, 0], None if q is None else gradients[1, 0], None if parts == 1 else gradients[0, 1]


_INPUT_GRADIENTS: dict[str, Callable[..., Tensor]] = {
    "triton": _gathered_input_gradient,
    "triton_atomic": _added_input_gradient,
    "dense": _dense_input_gradient,
}
