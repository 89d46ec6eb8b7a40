"""Elementwise work of moment propagation for activations with the batch innermost in memory, as single sweeps.

Sparse networks keep their activations in this layout (`leanbayes._ops.sparse`). A function is for large float32 tensors
of images in main memory, for which `takes` holds, and records no gradients.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leanbayes._ops import compiled
from leanbayes._ops.sparse_plan import Axis
from leanbayes._ops.threads import share_out

__all__ = [
    "is_innermost",
    "neighbour_products",
    "norm_means",
    "norm_variances",
    "rectify_and_sum",
    "sum_windows",
    "takes",
]

_LEAST = 2**14  # numbers, below which the calls cost more than the sweeps save
_PIECE = 2**15  # numbers that a thread takes at least


def is_innermost(x: Tensor) -> bool:
    """Tell whether the batch of images lies innermost in memory, and the channels do not.

    >>> is_innermost(torch.zeros(2, 3, 4, 4)), is_innermost(torch.zeros(3, 4, 4, 2).movedim(-1, 0))
    (False, True)
    """
    return (
        x.dim() == 4
        and x.stride(0) == 1
        and not x.is_contiguous(memory_format=torch.channels_last)
        and not x.is_contiguous()
        and x.movedim(0, -1).is_contiguous()
    )


def takes(*tensors: Tensor) -> bool:
    """Tell whether the kernels take these tensors, which have one shape."""
    if torch.compiler.is_compiling() or torch.is_grad_enabled():  # before any question about sizes
        return False
    return (
        tensors[0].numel() >= _LEAST
        and all(
            x.dtype == torch.float32 and x.device.type == "cpu" and x.shape == tensors[0].shape and is_innermost(x)
            for x in tensors
        )
        and not torch._C._functorch.maybe_current_level()
        and compiled.available()
    )


def rectify_and_sum(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean and variance of relu(z), and sums over positions, as `leanbayes._ops.moments.rectify_and_sum` does.

    The sums, of shape (examples, 4, channels), are those of E = E relu(z), E², Var relu(z) and Cov(z, relu(z)).
    """
    out = torch.empty_like(mean), torch.empty_like(mean)
    sums = mean.new_zeros(mean.shape[1], 4, len(mean))
    _by_channel("rectify_and_sum", [_planes(tensor) for tensor in (mean, variance, *out)] + [np.asarray(sums)])
    return *out, sums.permute(2, 1, 0)


def norm_means(x: Tensor, factor: Tensor, start: Tensor) -> Tensor:
    """Return factor·x + start with vectors over the channels."""
    out = torch.empty_like(x)
    planes = [_planes(tensor).reshape(x.shape[1], -1) for tensor in (x, out)]
    _by_channel("norm_means", [planes[0], *map(_vector, (factor, start)), planes[1]])
    return out


def norm_variances(
    x: Tensor, variance: Tensor, centre: Tensor, on_variance: Tensor, on_square: Tensor, added: Tensor
) -> tuple[Tensor, Tensor]:
    """Return A·σ² + B·(x − m)² + D, where m, A, B and D are vectors over channels, and two sums over positions.

    The sums of σ² and (x − m)² have the shape (examples, 2, channels). That of (x − m)² is 0 where B is 0.
    """
    out, sums = torch.empty_like(x), x.new_zeros(x.shape[1], 2, len(x))
    vectors = map(_vector, (centre, on_variance, on_square, added))
    _by_channel("norm_variances", [_planes(x), _planes(variance), *vectors, _planes(out), np.asarray(sums)])
    return out, sums.permute(2, 1, 0)


def neighbour_products(x: Tensor, step_down: int, step_across: int) -> Tensor:
    """Return the mean of x_p x_q over neighbouring positions p and q, of shape (examples, channels, 1, 1).

    It is the mean of that over pairs below each other, if there are any, and that over pairs beside each other. Every
    so many rows count, by ``step_down`` and ``step_across``.
    """
    count, channels, height, width = x.shape
    sums = x.new_zeros(channels, 2, count)
    _by_channel("neighbour_products", [np.asarray(x.movedim(0, -1)), np.asarray(sums)], step_down, step_across, at=1)
    below, beside = -(-(height - 1) // step_down) * width, -(-height // step_across) * (width - 1)
    means = [sums[:, kind] / pairs for kind, pairs in enumerate((below, beside)) if pairs]
    return torch.stack(means).mean(0).t()[..., None, None]


def sum_windows(x: Tensor, rows: Axis, columns: Axis) -> Tensor:
    """Return the sums over the windows of a convolution, for an array (channels, height, width, batch) of any float."""
    out = x.new_empty(len(x), rows.positions, columns.positions, x.shape[-1])
    axes = zip(x.shape[1:], (rows, columns), strict=False)
    geometry = [(size, axis.positions, axis.taps, axis.stride, axis.before, axis.dilation) for size, axis in axes]
    # For the kernel, channels are examples, and the batch are channels: it only asks which number lies innermost.
    planes = [np.asarray(tensor).reshape(len(x), -1, x.shape[-1]) for tensor in (x, out)]
    _by_channel("sum_windows", planes, np.array(geometry).reshape(-1), at=1)
    return out


def _planes(x: Tensor) -> Any:
    """Return (channels, positions, batch) as an array."""
    return np.asarray(x.movedim(0, -1).detach()).reshape(x.shape[1], -1, len(x))


def _vector(values: Tensor) -> Any:
    return np.asarray(values.detach().contiguous())


def _by_channel(name: str, arrays: Sequence[Any], *common: Any, at: int = 0) -> None:
    """Call a kernel on runs of channels, which are the first axis of all arrays, in threads.

    The arguments ``common``, which all channels share, come after the first ``at`` arrays.
    """
    kernel, channels, numbers = _kernel(name), len(arrays[0]), arrays[0].size
    share = max(_PIECE, -(-numbers // (4 * torch.get_num_threads())))
    step = max(1, share * channels // max(numbers, 1))

    def run(start: int) -> None:
        part = [array[start : start + step] for array in arrays]
        kernel(*part[:at], *common, *part[at:])

    share_out(run, range(0, channels, step))


@cache
def _kernel(name: str) -> Callable[..., None]:
    """Return a compiled kernel. Importing numba takes half a second, which small models need not wait for."""
    from leanbayes._ops import innermost_moment_kernels

    kernel: Callable[..., None] = getattr(innermost_moment_kernels, name)
    return kernel
