"""The variance after a convolution, with the squares of each filter spread evenly over its window (``kernels="box"``).

Var y = σ_w² ∗ (x² + σ_x²) + w² ∗ σ_x² has kernels that are nowhere negative, and what they meet changes little from one
position to the next. With K_oi the mean over the offsets of a kernel, Σ_ik K_oik v_i(p + k) ≈ Σ_i K_oi Σ_k v_i(p + k):
a product of matrices at each position, and a sum over windows. Where the exact formula has two 3x3 convolutions this
has 2/9 of the multiplications of one. Offsets count as often as they fall on the image, not on the padding: where the
image is no larger than the filter those at its rim, which hardly learn, would count too much.

It is exact for kernels of one entry, for weights whose squares and variances do not depend on the offset, and for
inputs that are constant within a window; with padding the mean over the positions is, for constant inputs.
"""

import functools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.propagate.linear_ops import Operation, along_channels, channel_axis, for_each_axis
from leanbayes.propagate.moments.layer import Means
from leanbayes.propagate.moments.tensor import MomentTensor, Setting

__all__ = ["averages_of", "folded_square", "in_boxes", "shares_of", "variance_in_boxes"]

_CONVOLUTIONS = (F.conv1d, F.conv2d, F.conv3d)
_USUAL: dict[str, Any] = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
_PIECE = 2**20  # numbers of a part of the batch that is taken at a time: it stays in the cache


def in_boxes(operation: Operation, groups: int, setting: Setting) -> bool:
    """Whether the variance of an input is so taken: by convolutions that mix all channels, if ``kernels`` is "box"."""
    return setting.kernels == "box" and operation in _CONVOLUTIONS and groups == 1


def shares_of(
    operation: Operation, x: Tensor, window: tuple[int, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor | None:
    """For each offset of a filter, the share of outputs for which it falls on the image; None where it is not known."""
    if operation is F.linear:
        return x.new_ones(1)
    given = _USUAL | dict(zip(_USUAL, args, strict=False)) | kwargs
    rank, padding = len(window), given["padding"]
    if operation not in _CONVOLUTIONS or given["groups"] != 1 or x.dim() != rank + 2:
        return None
    paddings = [padding] * rank if isinstance(padding, str) else for_each_axis(padding, rank)
    steps = (for_each_axis(given[name], rank) for name in ("stride", "dilation"))
    found = [1.0]
    for sizes in zip(x.shape[2:], window, paddings, *steps, strict=True):
        found = [a * b for a in found for b in _shares_along(*sizes)]
    return x.new_tensor(found)


@functools.cache
def _shares_along(n: int, kernel: int, padding: int | str, stride: int, dilation: int) -> list[float]:
    reach = dilation * (kernel - 1)
    if isinstance(padding, str):
        first, outputs = (-(reach // 2), n) if padding == "same" else (0, (n - reach - 1) // stride + 1)
    else:
        first, outputs = -padding, (n + 2 * padding - reach - 1) // stride + 1
    starts = range(first, first + outputs * stride, stride)
    return [sum(0 <= start + k * dilation < n for start in starts) / outputs for k in range(kernel)]


def folded_square(w: Tensor, shares: Tensor) -> Tensor:
    """Σ_k s_k w_oik², the offsets kept with length 1; some rows at a time, whose squares stay in the cache."""
    rows = max(1, _PIECE // 4 * len(w) // max(w.numel(), 1))
    found = torch.cat([part.square().flatten(2) @ shares for part in w.split(rows)])
    return found[(..., *[None] * (w.dim() - 2))]


def averages_of(x: MomentTensor) -> Means | None:
    """The means over the positions of images, as they came or computed now; None for anything else."""
    known = x.averages
    if known is not None and known.mean is not None and known.square is not None:
        return known.mean, known.square, known.variance
    if x.dim() != 4:
        return None
    mean, square, variance = (v.mean((2, 3), keepdim=True) for v in (x.expected, x.expected.square(), x.variance))
    return mean, square, variance


def variance_in_boxes(
    operation: Operation,
    x: Tensor,
    x_variance: Tensor,
    window: tuple[int, ...],
    w_square: Tensor,
    w_variance: Tensor | None,
    b_variance: Tensor | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Tensor:
    """Box((w² + σ_w²)·σ_x² + σ_w²·x²) + σ_b².

    ``w_square`` and ``w_variance`` are summed over the offsets, which are kept with length 1.
    """
    given = _USUAL | dict(zip(_USUAL, args, strict=False)) | kwargs
    if w_variance is not None:
        w_square = torch.cat([w_square + w_variance, w_variance], 1)

    def box(value: Tensor) -> Tensor:
        channels = value.shape[channel_axis(operation, value)]
        each = value.new_full((channels, 1, *window), 1 / math.prod(window))
        return operation(value, each, None, **given | {"groups": channels})

    def passed(value: Tensor) -> Tensor:
        """The product where there are fewer positions: after a box with a stride, else before."""
        if math.prod(window) == 1:
            return operation(value, w_square, None, **given)
        if any(step > 1 for step in for_each_axis(given["stride"], len(window))):
            return operation(box(value), w_square)
        return box(operation(value, w_square))

    if w_variance is None:
        variance = passed(x_variance)
    elif torch.is_grad_enabled() or x.device.type != "cpu" or x.dim() != len(window) + 2:
        variance = passed(torch.cat([x_variance, x.square()], channel_axis(operation, x)))
    else:
        variance = _in_pieces(passed, x, x_variance)
    if b_variance is not None:
        variance = variance + along_channels(operation, b_variance, variance)
    return variance


def _in_pieces(passed: Operation, x: Tensor, x_variance: Tensor) -> Tensor:
    """``passed`` of σ_x² and x² side by side, some examples at a time."""
    size = max(1, _PIECE * len(x) // max(x.numel(), 1))
    channels = x.shape[1]
    both = torch.cat([x_variance[:size], x[:size]], 1)
    made = None
    for start in range(0, max(len(x), 1), size):
        piece = both[: len(x) - start]
        piece[:, :channels] = x_variance[start : start + size]
        torch.square(x[start : start + size], out=piece[:, channels:])
        found = passed(piece)
        if made is None:
            strides = math.prod(found.shape[1:]), *found.stride()[1:]
            made = found.new_empty_strided((len(x), *found.shape[1:]), strides)
        made[start : start + size] = found
    assert made is not None
    return made
