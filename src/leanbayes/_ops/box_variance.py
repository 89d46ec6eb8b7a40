"""The variance after a convolution by boxes, with little memory for the backward pass and in few sweeps over memory.

A box spreads what a filter does to variances evenly over its window (`leanbayes.propagate.moments.rules.linear`):
Var y = Σ_windows M (σ_x² | x²), with one matrix M for all offsets. The product runs over positions, and the sum over
windows runs before it where a stride leaves fewer positions, otherwise after it. Both are linear, so the backward pass
consists of the same two steps in the other order. It keeps x and σ_x² alone, and writes them side by side again.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from leanbayes._ops.matrix_products import against_rows, times_matrix
from leanbayes._ops.moments import by_example, channels_innermost, sums_positions

__all__ = ["Windows", "box_variance"]

_PIECE = 2**20  # numbers of a part of the batch that is taken at a time, so that it stays in the cache

Windows = tuple[Sequence[int], Sequence[int]]
"""For rows and for columns: the window, the stride, the padding and the dilation."""


def box_variance(x: Tensor, x_variance: Tensor, matrix: Tensor, windows: Windows) -> tuple[Tensor, Tensor] | None:
    """Return Σ_windows M (σ_x² | x²), and the sums of x, x² and σ_x² over the positions, (examples, 3, channels).

    None for tensors that the kernels do not take; they take images in channels_last.

    Args:
        x: The mean of the input.
        x_variance: Its variance.
        matrix: M, of shape (out, 2·channels).
        windows: The windows of the convolution.
    """
    # `len` last: it would fix the size of the batch in a graph, which the question before it refuses.
    if matrix.dtype != torch.float32 or not sums_positions(x, x_variance) or not len(x):
        return None
    if min(_out_size(x, windows)) < 1:
        return None
    if not torch.is_grad_enabled():  # torch looks at signatures in each call of `apply`
        return _Box.forward(x, x_variance, matrix, windows)
    result: tuple[Tensor, Tensor] = _Box.apply(x, x_variance, matrix, windows)
    return result


class _Box(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, x_variance: Tensor, matrix: Tensor, windows: Windows) -> tuple[Tensor, Tensor]:
        rows, columns = _out_size(x, windows)
        out = x.new_empty(len(x), rows, columns, len(matrix)).permute(0, 3, 1, 2)
        sums = x.new_empty(len(x), 3, x.shape[1])
        for part in _pieces(x):
            both, sums[part] = _side_by_side(x[part], x_variance[part])
            if _is_point(windows):
                out[part] = _times(both, matrix)
            elif _sums_first(windows):
                out[part] = _times(_summed(both, windows), matrix)
            else:
                _summed(_times(both, matrix), windows, out[part])
        return out, sums

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004
        *tensors, ctx.windows = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor, of_sums: Tensor) -> tuple[Tensor | None, ...]:
        x, x_variance, matrix = ctx.saved_tensors
        windows, into_x = ctx.windows, ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        of_x, of_variance = (torch.empty_like(x), torch.empty_like(x)) if into_x else (None, None)
        of_matrix = torch.zeros_like(matrix) if ctx.needs_input_grad[2] else None
        gradient, of_sums = channels_innermost(gradient), of_sums.contiguous()
        sums_first, point = _sums_first(windows), _is_point(windows)
        for part in _pieces(x):
            g = gradient[part] if sums_first or point else _spread(gradient[part], windows, x.shape[2:])
            if of_matrix is not None:
                met, _ = _side_by_side(x[part], x_variance[part])
                of_matrix += against_rows(_rows(g), _rows(_summed(met, windows) if sums_first else met))
            if of_x is not None and of_variance is not None:
                of_both = _times(g, matrix.mT.contiguous())
                if sums_first:
                    of_both = _spread(of_both, windows, x.shape[2:])
                targets = [of_x[part], of_variance[part]]
                by_example("pull_back_beside", [x[part]], [], [of_both, *targets], [], [of_sums[part]], home=_HOME)
        return of_x, of_variance, of_matrix, None


_HOME = "box_kernels"


def _pieces(x: Tensor) -> Iterator[slice]:
    """Yield parts of the batch."""
    size = max(1, _PIECE * len(x) // x.numel())
    return (slice(start, start + size) for start in range(0, len(x), size))


def _is_point(windows: Windows) -> bool:
    """Return whether each window is the position of its output alone."""
    return all(window == 1 and stride == 1 and padding == 0 for window, stride, padding, _ in windows)


def _sums_first(windows: Windows) -> bool:
    return any(stride > 1 for _, stride, _, _ in windows)


def _out_size(x: Tensor, windows: Windows) -> tuple[int, int]:
    rows, columns = (
        (size + 2 * padding - dilation * (window - 1) - 1) // stride + 1
        for size, (window, stride, padding, dilation) in zip(x.shape[2:], windows, strict=True)
    )
    return rows, columns


def _side_by_side(x: Tensor, x_variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return σ_x² and x² side by side, and the sums over the positions."""
    out = x.new_empty(len(x), *x.shape[2:], 2 * x.shape[1]).permute(0, 3, 1, 2)
    sums = x.new_zeros(len(x), 3, x.shape[1])
    by_example("beside", [x, x_variance], [sums], [out])
    return out, sums


def _rows(images: Tensor) -> Tensor:
    """Return images in channels_last with their channels along the last axis."""
    return images.permute(0, 2, 3, 1)


def _times(images: Tensor, matrix: Tensor) -> Tensor:
    """Multiply the channels at each position by the matrix."""
    return times_matrix(_rows(images), matrix).permute(0, 3, 1, 2)


def _summed(images: Tensor, windows: Windows, out: Tensor | None = None) -> Tensor:
    """Sum images over windows."""
    size = _out_size(images, windows)
    if out is None:
        out = images.new_empty(len(images), *size, images.shape[1]).permute(0, 3, 1, 2)
    by_example("sum_windows", [images], [], [out], [_geometry(images.shape[2:], size, windows)], home=_HOME)
    return out


def _spread(gradient: Tensor, windows: Windows, size: Sequence[int]) -> Tensor:
    """Return the gradient of `_summed` for images of this size."""
    out = gradient.new_empty(len(gradient), *size, gradient.shape[1]).permute(0, 3, 1, 2)
    geometry = _geometry(size, gradient.shape[2:], windows)
    by_example("spread_windows", [gradient], [], [out], [geometry], home=_HOME)
    return out


def _geometry(size: Sequence[int], out_size: Sequence[int], windows: Windows) -> Tensor:
    axes = zip(size, out_size, windows, strict=True)
    return torch.tensor([number for before, after, window in axes for number in (before, after, *window)])
