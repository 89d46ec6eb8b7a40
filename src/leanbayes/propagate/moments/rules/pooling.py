"""Pooling: averages, and the largest by co-pooling, which takes the variance of the entry with the largest mean."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes._ops.innermost_moments import is_innermost
from leanbayes._ops.moments import channels_innermost, pool_largest, sums_positions
from leanbayes.propagate.linear_ops import Operation
from leanbayes.propagate.moments.correlations import Averages, Correlations
from leanbayes.propagate.moments.kinds import RULES, Resampling
from leanbayes.propagate.moments.tensor import MomentTensor, first_random, missing

__all__ = ["adaptive_average_pool", "average_pool", "max_along", "max_pool"]

CO_POOLING = "the entry with the largest mean is the largest (co-pooling, as in VDP++)"
_MAX: dict[Any, Any] = {F.max_pool1d: (F.max_pool1d_with_indices, 1), F.max_pool2d: (F.max_pool2d_with_indices, 2),
        F.max_pool3d: (F.max_pool3d_with_indices, 3)}  # fmt: skip
_ADAPTIVE: dict[Any, Any] = {F.adaptive_max_pool1d: (F.adaptive_max_pool1d_with_indices, 1),
             F.adaptive_max_pool2d: (F.adaptive_max_pool2d_with_indices, 2),
             F.adaptive_max_pool3d: (F.adaptive_max_pool3d_with_indices, 3)}  # fmt: skip
_WITH_INDICES: dict[Any, int] = dict([*_MAX.values(), *_ADAPTIVE.values()])
_BUILTIN: dict[Any, Any] = {
    torch.max_pool1d: F.max_pool1d,
    torch.max_pool2d: F.max_pool2d,
    torch.max_pool3d: F.max_pool3d,
}
_AVERAGE = {F.avg_pool1d: 1, F.avg_pool2d: 2, F.avg_pool3d: 3}
_ADAPTIVE_AVERAGE = {F.adaptive_avg_pool1d: 1, F.adaptive_avg_pool2d: 2, F.adaptive_avg_pool3d: 3}


@RULES.rule(*_MAX, *_BUILTIN, *_ADAPTIVE, *_WITH_INDICES, exact=False, assumes=CO_POOLING)
def max_pool(operation: Operation, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the mean and variance of the entry with the largest mean in each window."""
    operation = _BUILTIN.get(operation, operation)
    indices_wanted = kwargs.pop("return_indices", False) or operation in _WITH_INDICES
    if is_innermost(input.expected):
        input.lay_out(channels_innermost)
    if operation is F.max_pool2d and not indices_wanted and not torch.is_grad_enabled():
        swept = _swept(input, *args, **kwargs)
        if swept is not None:
            return swept
    with_indices, rank = (_MAX | _ADAPTIVE).get(operation) or (operation, _WITH_INDICES.get(operation, 0))
    mean, indices = with_indices(input.expected, *args, **kwargs)
    variance = _chosen(input.variance, indices, rank)
    averages: Averages | None = None
    if operation is F.max_pool2d and input.setting.rank and sums_positions(input.expected, input.variance):
        # The sweep without gradients averages over all positions; grad mode must change no number.
        averages = Averages(*(part.mean((2, 3), keepdim=True) for part in (mean, mean.square(), variance)))
    pooled = input.like(mean, variance, input.correlations, averages)
    return (pooled, indices) if indices_wanted else pooled


def _swept(
    input: MomentTensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> MomentTensor | None:
    """Do the same in one sweep over memory; return None if the sweep does not take these tensors."""
    if ceil_mode:
        return None
    sizes = kernel_size, kernel_size if stride is None or stride == [] else stride, padding, dilation
    windows = list(zip(*(_for_each_axis(value, 2) for value in sizes), strict=True))
    if any(window < 1 or step < 1 or gap < 1 or not 0 <= 2 * pad <= window for window, step, pad, gap in windows):
        return None  # torch explains what is wrong
    out_size = [
        (n + 2 * pad - gap * (window - 1) - 1) // step + 1
        for n, (window, step, pad, gap) in zip(input.shape[2:], windows, strict=True)
    ]
    if min(out_size) < 1:
        return None
    swept = pool_largest(input.expected, input.variance, out_size, windows)
    if swept is None:
        return None
    mean, variance, sums = swept
    averages = Averages(*(part[..., None, None] / math.prod(out_size) for part in sums.unbind(1)))
    return input.like(mean, variance, input.correlations, averages)


def _chosen(variance: Tensor, indices: Tensor, rank: int) -> Tensor:
    """Return the variances at these flat positions, in the layout of the indices."""
    if rank != 2 or indices.dim() != 4 or indices.is_contiguous():
        return variance.flatten(-rank).gather(-1, indices.flatten(-rank)).view(indices.shape)
    inner = indices.permute(0, 2, 3, 1)  # channels_last: positions first, then channels
    rows = variance.permute(0, 2, 3, 1).flatten(1, 2)
    return rows.gather(1, inner.flatten(1, 2)).view(inner.shape).permute(0, 3, 1, 2)


@RULES.rule(torch.max, Tensor.max, torch.amax, Tensor.amax, exact=False, assumes=CO_POOLING)
def max_along(operation: Operation, input: Any, dim: Any, keepdim: bool = False) -> Any:
    """Return the mean and variance of the entry with the largest mean along one axis."""
    if not isinstance(dim, int):
        missing(operation, first_random(input, dim), "it has a rule for the largest along one axis")
    mean, indices = input.expected.max(dim, keepdim=True)
    variance = input.variance.gather(dim, indices)
    rho = input.correlations.positions
    correlations = Correlations(None if rho is None or rho.shape[dim] > 1 else rho)
    if not keepdim:
        mean, indices, variance = (t.squeeze(dim) for t in (mean, indices, variance))
        correlations = correlations.squeezed((dim,))
    pooled = input.like(mean, variance, correlations)
    return pooled if operation in (torch.amax, Tensor.amax) else torch.return_types.max((pooled, indices))


@RULES.resampling(*_AVERAGE, exact=True, assumes="independent entries, except for what positions share")
def average_pool(
    operation: Operation,
    mean: Tensor,  # noqa: ARG001
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Resampling:
    """Average over windows: every entry of a window has the weight 1/divisor."""
    rank = _AVERAGE[operation]
    sizes = [_for_each_axis(value, rank) for value in (kernel_size, stride or kernel_size, padding)]
    options = [ceil_mode, count_include_pad, *([] if rank == 1 else [divisor_override])]

    def apply(value: Tensor) -> Tensor:
        return operation(value, kernel_size, stride, padding, *options)

    def along(eye: Tensor, axis: int) -> Tensor:
        matrix = F.avg_pool1d(eye, sizes[0][axis], sizes[1][axis], sizes[2][axis], ceil_mode, count_include_pad)
        if divisor_override is None:
            return matrix
        weight: float = float(divisor_override) ** (-1 / rank)
        return (matrix > 0).to(matrix.dtype) * weight

    return Resampling(apply, along, rank)


@RULES.resampling(*_ADAPTIVE_AVERAGE, exact=True, assumes="as for avg_pool")
def adaptive_average_pool(operation: Operation, mean: Tensor, output_size: Any) -> Resampling:
    """Average over windows that cover the input."""
    rank = _ADAPTIVE_AVERAGE[operation]
    wanted = zip(mean.shape[-rank:], _for_each_axis(output_size, rank), strict=True)
    sizes = [n if size is None else size for n, size in wanted]
    return Resampling(
        lambda value: operation(value, output_size), lambda eye, axis: F.adaptive_avg_pool1d(eye, sizes[axis]), rank
    )


def _for_each_axis(value: Any, rank: int) -> list[Any]:
    values = [value] if isinstance(value, int) or value is None else list(value)
    return values * rank if len(values) == 1 else values
