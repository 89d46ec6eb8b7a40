"""The products of `leanbayes._ops.sparse` as one differentiable function, for activations with the batch innermost."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from math import prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import _disable_current_modes

from leanbayes._ops import sparse_block_products as blocks
from leanbayes._ops.sparse_block_plan import block_plan_of
from leanbayes._ops.sparse_choice import VECTOR, Kernels
from leanbayes._ops.sparse_plan import Csr, Geometry, Walk, csr_of, plan_of
from leanbayes._ops.threads import cuts, share_out

__all__ = ["HalvesProduct", "SparseProduct", "counted", "counting", "halves_fit", "in_autocast", "innermost"]

_SMALL = 2**19  # products that one thread finishes before a second one has begun
_PIECES = 4  # pieces of work for each thread, so that none waits long for another
_BY_HALVES = ("blocks", "numba")  # the kernels that can give each half of a batch its own weights


_COUNTS: list[list[int]] = []


@contextmanager
def counting() -> Iterator[list[int]]:
    """Collect the floating-point operations of the products inside the block; a multiply and an add count as two."""
    _COUNTS.append([])
    try:
        yield _COUNTS[-1]
    finally:
        _COUNTS.pop()


@contextmanager
def counted(flops: int) -> Iterator[None]:
    """Count operations, and hide the inside from the counter of torch, which takes a sparse matrix for a dense one."""
    if not _COUNTS:
        yield
        return
    for counts in _COUNTS:
        counts.append(flops)
    with _disable_current_modes():
        yield


def in_autocast(x: Tensor) -> bool:
    """Return whether autocast is on for the device of a tensor."""
    kind = x.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


@contextmanager
def _without_autocast(x: Tensor, flops: int) -> Iterator[None]:
    """Turn autocast off inside the block, because the sparse products of torch have no lower precision."""
    casting = torch.autocast(x.device.type, enabled=False) if in_autocast(x) else nullcontext()
    with casting, counted(flops):
        yield


def innermost(x: Tensor) -> Tensor:
    """Turn (batch, channels, …) into (channels, …, batch) in contiguous memory."""
    last = x.movedim(0, -1)
    if last.is_contiguous() or x.dim() < 2:
        return last.contiguous()
    if x.is_contiguous():  # torch transposes a matrix several times faster than it permutes axes
        return x.reshape(len(x), -1).t().contiguous().view(last.shape)
    pixels = x.movedim(1, -1)
    if pixels.is_contiguous():
        turned = pixels.reshape(len(x), -1).t().contiguous().view(-1, x.shape[1], len(x))
        return turned.transpose(0, 1).contiguous().view(last.shape)
    return last.contiguous()


class SparseProduct(torch.autograd.Function):
    """m = op(x, μ), and v = op(x², σ²) if there are variances (SSVI, Li et al. 2024, eq. 4).

    The results can be differentiated once.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mean: Tensor, variance: Tensor | None, index: Tensor, geometry: Geometry, kernels: Kernels
    ) -> tuple[Tensor, ...]:
        """Return one or two tensors of shape (outputs, positions, batch)."""
        ctx.save_for_backward(x, mean, variance, index)
        ctx.geometry, ctx.kernels = geometry, kernels
        ctx.flops = 2 * len(index) * prod(geometry.positions) * x.shape[-1] * (1 if variance is None else 2)
        with _without_autocast(x, ctx.flops):
            return SparseProduct._product(x, mean, variance, index, geometry, kernels)

    @staticmethod
    def _product(
        x: Tensor, mean: Tensor, variance: Tensor | None, index: Tensor, geometry: Geometry, kernels: Kernels
    ) -> tuple[Tensor, ...]:
        if kernels.forward == "blocks":
            plan = block_plan_of(index, geometry)
            sums = [blocks.output_sums(plan, x, mean)]
            if variance is not None:
                sums.append(blocks.output_sums(plan, x, variance, squared=True))
            return tuple(sums)
        if kernels.forward == "csr":
            csr, flat = csr_of(index, geometry).forward, x.view(geometry.inputs, -1)
            results = [_matrix(csr, mean) @ flat]
            if variance is not None:
                results.append(_matrix(csr, variance) @ flat.square())
            return tuple(y.unsqueeze(1) for y in results)
        walk = plan_of(index, geometry).forward
        return _gather(walk, geometry.outputs, geometry.positions, mean, variance, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return opᵀ(g, μ) + 2x·opᵀ(q, σ²) for the input, and SSVI's eq. 5 for the values."""
        x, mean, variance, index = ctx.saved_tensors
        g, *of_second = (innermost(gradient.movedim(-1, 0)) for gradient in gradients)
        q = of_second[0] if of_second else None
        of_input, of_mean, of_variance = None, None, None
        if ctx.needs_input_grad[0]:
            with _without_autocast(x, ctx.flops):
                of_input = _input_gradient(ctx.kernels.input, x, mean, variance, index, ctx.geometry, g, q)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            with _without_autocast(x, ctx.flops):
                of_mean, of_variance = _value_gradients(ctx.kernels.values, x, index, ctx.geometry, g, q)
        return of_input, of_mean, of_variance, None, None, None


def halves_fit(x: Tensor, kernels: Kernels) -> bool:
    """Return whether one product can take both halves: the batch is even, and numba's vectors fit into each half."""
    half, rest = divmod(len(x), 2)
    if kernels.forward == "triton":
        return half > 0 and not rest
    alike = kernels.forward == kernels.values and kernels.forward in _BY_HALVES
    return alike and not rest and half * x.itemsize >= VECTOR


class HalvesProduct(torch.autograd.Function):
    """op(x, W₁) for the first half of a batch and op(x, W₂) for the second, where both weights have the same non-zeros.

    One sweep over the non-zeros serves both halves, which stay where they lie in memory. So a pair of mirrored draws
    costs three sparse products in a training step, as one draw does. The results can be differentiated once.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, first: Tensor, second: Tensor, index: Tensor, geometry: Geometry, kernels: Kernels
    ) -> Tensor:
        """Return a tensor of shape (outputs, positions, batch)."""
        ctx.save_for_backward(x, first, second, index)
        ctx.geometry, ctx.kernels = geometry, kernels
        ctx.flops = 2 * len(index) * prod(geometry.positions) * x.shape[-1]
        with _without_autocast(x, ctx.flops):
            if kernels.forward == "blocks":
                return blocks.output_sums(block_plan_of(index, geometry), x, first, second)
            walk = plan_of(index, geometry).forward
            return _gather(walk, geometry.outputs, geometry.positions, first, None, x, other=second)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return opᵀ(g, W) for the input, and the gradient of each weight from its own half."""
        x, first, second, index = ctx.saved_tensors
        geometry: Geometry = ctx.geometry
        g = innermost(gradient.movedim(-1, 0))
        of_input, of_first, of_second = None, None, None
        if ctx.needs_input_grad[0]:
            with _without_autocast(x, ctx.flops):
                of_input = HalvesProduct._input_gradient(ctx.kernels.input, first, second, index, geometry, g)
                of_input = of_input.view(x.shape)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            with _without_autocast(x, ctx.flops):
                if ctx.kernels.values == "blocks":
                    of_first, of_second = blocks.value_sums(block_plan_of(index, geometry), x, g, halves=True)
                else:
                    of_first, of_second = _correlate(index, geometry, x, g, None, halves=True)
        return of_input, of_first, of_second, None, None, None

    @staticmethod
    def _input_gradient(
        kernel: str, first: Tensor, second: Tensor, index: Tensor, geometry: Geometry, g: Tensor
    ) -> Tensor:
        if kernel == "blocks":
            return blocks.input_sums(block_plan_of(index, geometry), g, first, second)
        walk = plan_of(index, geometry).backward
        return _gather(walk, geometry.inputs, geometry.sizes, first, None, g, other=second)[0]


def _input_gradient(
    kernel: str,
    x: Tensor,
    mean: Tensor,
    variance: Tensor | None,
    index: Tensor,
    geometry: Geometry,
    g: Tensor,
    q: Tensor | None,
) -> Tensor:
    if kernel == "blocks":
        plan = block_plan_of(index, geometry)
        sums = blocks.input_sums(plan, g, mean)
        if variance is not None and q is not None:
            sums = blocks.input_sums(plan, q, variance, by=x, onto=sums)
        return sums.view(x.shape)
    if kernel == "numba":
        walk = plan_of(index, geometry).backward
        return _gather(walk, geometry.inputs, geometry.sizes, mean, variance, g, q, x)[0].view(x.shape)
    csr = csr_of(index, geometry).backward
    result = _matrix(csr, mean) @ g.view(geometry.outputs, -1)
    if variance is not None and q is not None:
        result.addcmul_(x.view(result.shape), _matrix(csr, variance) @ q.view(geometry.outputs, -1), value=2)
    return result.view(x.shape)


def _value_gradients(
    kernel: str, x: Tensor, index: Tensor, geometry: Geometry, g: Tensor, q: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return Σ gx and Σ qx² for each non-zero."""
    if kernel == "blocks":
        plan = block_plan_of(index, geometry)
        return blocks.value_sums(plan, x, g)[0], None if q is None else blocks.value_sums(plan, x, q, squared=True)[0]
    if kernel == "numba":
        return _correlate(index, geometry, x, g, q)
    csr, flat = csr_of(index, geometry).forward, x.view(geometry.inputs, -1)
    pattern = _matrix(csr, x.new_zeros(len(index)))

    def at_non_zeros(gradient: Tensor, inputs: Tensor) -> Tensor:
        left = gradient.view(geometry.outputs, -1)
        result: Tensor = torch.sparse.sampled_addmm(pattern, left, inputs.t(), beta=0).values()
        return result

    return at_non_zeros(g, flat), None if q is None else at_non_zeros(q, flat.square())


def _matrix(csr: Csr, values: Tensor) -> Tensor:
    _accept_csr()
    ordered = values if csr.order is None else values[csr.order]
    return torch.sparse_csr_tensor(csr.rows, csr.columns, ordered, csr.shape, check_invariants=False)


@cache
def _accept_csr() -> None:
    """Silence the warning that torch gives once in a process about its CSR tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.zeros(1, 1).to_sparse_csr()


def _gather(
    walk: Walk,
    targets: int,
    positions: tuple[int, int, int],
    mean: Tensor,
    variance: Tensor | None,
    x: Tensor,
    y: Tensor | None = None,
    by: Tensor | None = None,
    other: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Return the sums of `sparse_kernels.gather`, of shape (targets, positions, batch)."""
    from leanbayes._ops import sparse_kernels  # numba takes half a second, which dense models need not wait for

    batch, y = x.shape[-1], None if variance is None else y
    by = None if y is None else by
    missing = VECTOR // x.itemsize - batch
    if batch and missing > 0:  # the kernel loads whole vectors
        padded = [None if tensor is None else F.pad(tensor, (0, missing)) for tensor in (x, y, by)]
        sums = _gather(walk, targets, positions, mean, variance, padded[0], *padded[1:])  # type: ignore[arg-type]
        return tuple(values[..., :batch].contiguous() for values in sums)
    out = x.new_empty(targets, prod(positions), batch)
    spread = torch.empty_like(out) if variance is not None and y is None else None
    arguments = [_flat(tensor) for tensor in (x, y, by)]
    arguments += [None if values is None else _flat(values.detach()[walk.order]) for values in (mean, other, variance)]
    arguments += [_flat(tensor) for tensor in (out, spread)]
    small = len(walk.order) * prod(positions) * batch < _SMALL
    pieces = 1 if small else _PIECES * torch.get_num_threads()
    tiles = cuts(sparse_kernels.tiles(*positions, batch if other is None else batch // 2), pieces)
    channels = cuts(targets, -(-pieces // max(1, len(tiles))))
    share_out(
        lambda piece: sparse_kernels.gather(*arguments, *walk.arguments, batch, *piece),
        [(*tile, *channel) for tile in tiles for channel in channels],
    )
    return (out,) if spread is None else (out, spread)


def _correlate(
    index: Tensor, geometry: Geometry, x: Tensor, g: Tensor, q: Tensor | None, halves: bool = False
) -> tuple[Tensor, Tensor | None]:
    from leanbayes._ops import sparse_kernels

    plan, batch = plan_of(index, geometry), x.shape[-1]
    walk = plan.forward
    two = halves or q is not None
    sums = x.new_zeros(2 if two else 1, len(index))
    of_other, of_variance = sums[1] if halves else None, None if q is None else sums[1]
    arguments = [_flat(tensor) for tensor in (x, g, q, sums[0], of_other, of_variance)]
    small = len(index) * prod(geometry.positions) * batch < _SMALL
    pieces = 1 if small else _PIECES * torch.get_num_threads()
    if batch:
        share_out(
            lambda channel: sparse_kernels.correlate(*arguments, *walk.arguments, batch, plan.reach, *channel),
            cuts(geometry.outputs, pieces),
        )
    result = torch.empty_like(sums)
    result[:, walk.order] = sums
    return result[0], result[1] if two else None


def _flat(tensor: Tensor | None) -> Any:
    return None if tensor is None else np.asarray(tensor.detach()).reshape(-1)
