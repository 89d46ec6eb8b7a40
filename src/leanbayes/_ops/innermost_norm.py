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
from leanbayes._ops.rectified import Saved, remember
from leanbayes._ops.threads import share_out

__all__ = ["batch_norm", "kernel_fits", "rows_of"]

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


def batch_norm(x: Tensor, gain: Tensor, offset: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return γ(x − μ)/√(v + ε) + β of each channel, and the mean μ and the biased variance v of each in float64.

    The result has the strides of the input. `leanbayes._ops.rectified` can compute it again.

    >>> batch_norm(torch.tensor([[1.0], [3.0]]), torch.ones(1), torch.zeros(1), 0.0)
    (tensor([[-1.],
            [ 1.]]), tensor([2.], dtype=torch.float64), tensor([1.], dtype=torch.float64))

    Args:
        x: the activations, of shape (batch, channels, …) with the batch innermost in memory, for whose `rows_of` the
            kernel fits.
        gain: γ of each channel.
        offset: β of each channel.
        eps: ε.
    """
    normed: tuple[Tensor, Tensor, Tensor] = _NormOfRows.apply(x, gain, offset, eps)
    remember(normed[0], _NormAgain.of)
    return normed


def rows_of(x: Tensor) -> Tensor:
    """Return a row for each channel of (batch, channels, …), without a copy if the batch is innermost in memory.

    >>> rows_of(torch.zeros(8, 3, 5, 5)).shape
    torch.Size([3, 200])
    """
    return x.movedim(0, -1).reshape(x.shape[1], -1)


class _NormOfRows(torch.autograd.Function):
    """γ(x − μ)/s + β with μ and s of each channel, on which the gradient depends too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, offset: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the result and the statistics in one sweep."""
        out = torch.empty_strided(x.shape, x.stride())  # no view, so it may be rectified in place
        mean, variance, inverse = torch.empty(3, x.shape[1], dtype=torch.float64).unbind()
        _run("norm", [rows_of(x), gain, offset, rows_of(out), mean, variance, inverse], eps)
        ctx.save_for_backward(x, gain, offset, mean, inverse)
        ctx.eps = eps
        ctx.mark_non_differentiable(mean, variance)
        return out, mean, variance

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        """Return the gradients in one sweep, or by operations of torch where they are themselves differentiated."""
        x, gain, offset, mean, inverse = ctx.saved_tensors
        if torch.is_grad_enabled():
            whole = F.batch_norm(x, None, None, gain, offset, True, 0.0, ctx.eps)
            wanted = [value for value, needed in zip((x, gain, offset), ctx.needs_input_grad, strict=False) if needed]
            results = iter(torch.autograd.grad(whole, wanted, gradient, create_graph=True))
            return *(next(results) if needed else None for needed in ctx.needs_input_grad[:3]), None
        of_x, of_gain, of_offset = (
            torch.empty_strided(x.shape, x.stride()),
            torch.empty_like(gain),
            torch.empty_like(offset),
        )
        _run("pull_back", [rows_of(gradient), rows_of(x), gain, mean, inverse, rows_of(of_x), of_gain, of_offset])
        return of_x, of_gain, of_offset, None


class _NormAgain:
    """The output a(x − m) + b of a norm from its input x, by the instructions of its forward pass."""

    def __init__(self, x: Tensor, gain: Tensor, offset: Tensor, mean: Tensor, inverse: Tensor) -> None:
        self.x, self.like = Saved(x), x.detach()
        # Copies of a few numbers, so that nobody can change them.
        self.channels = [(gain.detach() * inverse).float(), mean.float(), offset.detach().clone()]

    @staticmethod
    def of(node: Any) -> "_NormAgain":
        """Read what is needed from the node of the norm."""
        return _NormAgain(*node.saved_tensors)

    def value(self) -> Tensor:
        """Compute a(x − m) + b."""
        return self._computed("scaled")

    def rectified(self, plus: Tensor | None) -> Tensor:
        """Compute max(a(x − m) + b + p, 0) in one sweep."""
        return self._computed("rectified") if plus is None else self._computed("rectified_sum", plus)

    def _computed(self, kernel: str, *more: Tensor) -> Tensor:
        x = self.x.get()
        out = torch.empty_strided(x.shape, x.stride())
        _run(kernel, [rows_of(x), *self.channels, *(rows_of(term) for term in more), rows_of(out)])
        return out


def _run(name: str, tensors: list[Tensor], *numbers: float) -> None:
    """Call a kernel on pieces of the channels, in threads."""
    from leanbayes._ops import innermost_norm_kernels  # numba takes half a second, which other models need not wait for

    kernel: Callable[..., None] = getattr(innermost_norm_kernels, name)
    arrays = [np.asarray(tensor.detach()) for tensor in tensors]
    channels = max(1, _PIECE * len(arrays[0]) // arrays[0].size)

    def piece(start: int) -> None:
        kernel(*(array[start : start + channels] for array in arrays), *numbers)

    share_out(piece, range(0, len(arrays[0]), channels))
