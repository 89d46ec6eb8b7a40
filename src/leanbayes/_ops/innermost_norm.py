"""Batch norm with the statistics of the batch, for activations with the batch innermost in memory.

Sparse networks keep their activations in this layout (`leanbayes._ops.sparse`). Compiled kernels take one sweep over
the activations forward and one backward.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes._ops import compiled
from leanbayes._ops.normal import has_kernel
from leanbayes._ops.threads import share_out

__all__ = ["kernel_fits", "norm_of_rows"]

_LEAST = 2**13  # numbers from which the kernels are worth their call
_PIECE = 2**17  # numbers that a thread takes at a time; no result depends on it


def kernel_fits(rows: Tensor, gain: Tensor | None, offset: Tensor | None) -> bool:
    """Return whether the kernels can norm these rows: large, contiguous, float32, with plain gains and offsets."""
    if gain is None or offset is None or not all(type(value) in (Tensor, nn.Parameter) for value in (gain, offset)):
        return False
    if (
        not gain.dtype == offset.dtype == rows.dtype
        or not has_kernel(rows, rows.numel(), _LEAST)
        or not rows.is_contiguous()
        or rows.shape[1] < 2
    ):
        return False
    return compiled.available()


def norm_of_rows(rows: Tensor, gain: Tensor, offset: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return γ(x − μ)/√(v + ε) + β of each row, and the mean μ and the biased variance v of each in float64.

    >>> norm_of_rows(torch.tensor([[1.0, 3.0]]), torch.ones(1), torch.zeros(1), 0.0)
    (tensor([[-1.,  1.]]), tensor([2.], dtype=torch.float64), tensor([1.], dtype=torch.float64))

    Args:
        rows: the activations, of shape (channels, numbers), for which `kernel_fits` holds.
        gain: γ of each channel.
        offset: β of each channel.
        eps: ε.
    """
    normed: tuple[Tensor, Tensor, Tensor] = _NormOfRows.apply(rows, gain, offset, eps)
    return normed


class _NormOfRows(torch.autograd.Function):
    """γ(x − μ)/s + β with μ and s of each row, on which the gradient depends too."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, gain: Tensor, offset: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the result and the statistics in one sweep."""
        out = torch.empty_like(rows)
        mean, variance, inverse = torch.empty(3, len(rows), dtype=torch.float64).unbind()
        _run("norm", [rows, gain, offset, out, mean, variance, inverse], eps)
        ctx.save_for_backward(rows, gain, offset, mean, inverse)
        ctx.eps = eps
        ctx.mark_non_differentiable(mean, variance)
        return out, mean, variance

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        """Return the gradients in one sweep, or by operations of torch where they are themselves differentiated."""
        rows, gain, offset, mean, inverse = ctx.saved_tensors
        if torch.is_grad_enabled():
            whole = F.batch_norm(rows.unsqueeze(0), None, None, gain, offset, True, 0.0, ctx.eps).squeeze(0)
            wanted = [
                value for value, needed in zip((rows, gain, offset), ctx.needs_input_grad, strict=False) if needed
            ]
            results = iter(torch.autograd.grad(whole, wanted, gradient, create_graph=True))
            return *(next(results) if needed else None for needed in ctx.needs_input_grad[:3]), None
        of_rows, of_gain, of_offset = torch.empty_like(rows), torch.empty_like(gain), torch.empty_like(offset)
        _run("pull_back", [gradient.contiguous(), rows, gain, mean, inverse, of_rows, of_gain, of_offset])
        return of_rows, of_gain, of_offset, None


def _run(name: str, tensors: list[Tensor], *numbers: float) -> None:
    """Call a kernel on pieces of the channels, in threads."""
    from leanbayes._ops import innermost_norm_kernels  # numba takes half a second, which other models need not wait for

    kernel: Callable[..., None] = getattr(innermost_norm_kernels, name)
    arrays = [np.asarray(tensor.detach()) for tensor in tensors]
    channels = max(1, _PIECE * len(arrays[0]) // arrays[0].size)

    def piece(start: int) -> None:
        kernel(*(array[start : start + channels] for array in arrays), *numbers)

    share_out(piece, range(0, len(arrays[0]), channels))
