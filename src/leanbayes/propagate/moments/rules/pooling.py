"""Pooling: the largest by co-pooling (the variance of the entry with the largest mean), and averages."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.propagate.linear_ops import Operation
from leanbayes.propagate.moments.rules.resizing import resample
from leanbayes.propagate.moments.tensor import RULES, MomentTensor, first_random, missing

__all__ = ["adaptive_average_pool", "average_pool", "max_along", "max_pool"]

CO_POOLING = "the entry with the largest mean is the largest (co-pooling, 002)"
_MAX: dict[Any, Any] = {F.max_pool1d: (F.max_pool1d_with_indices, 1), F.max_pool2d: (F.max_pool2d_with_indices, 2),
        F.max_pool3d: (F.max_pool3d_with_indices, 3)}  # fmt: skip
_ADAPTIVE: dict[Any, Any] = {F.adaptive_max_pool1d: (F.adaptive_max_pool1d_with_indices, 1),
             F.adaptive_max_pool2d: (F.adaptive_max_pool2d_with_indices, 2),
             F.adaptive_max_pool3d: (F.adaptive_max_pool3d_with_indices, 3)}  # fmt: skip
_WITH_INDICES: dict[Any, int] = dict([*_MAX.values(), *_ADAPTIVE.values()])
_AVERAGE = {F.avg_pool1d: 1, F.avg_pool2d: 2, F.avg_pool3d: 3}
_ADAPTIVE_AVERAGE = {F.adaptive_avg_pool1d: 1, F.adaptive_avg_pool2d: 2, F.adaptive_avg_pool3d: 3}


@RULES.rule(*_MAX, *_ADAPTIVE, *_WITH_INDICES, exact=False, assumes=CO_POOLING)
def max_pool(operation: Operation, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Mean and variance at the arg max of the means."""
    indices_wanted = kwargs.pop("return_indices", False) or operation in _WITH_INDICES
    with_indices, rank = (_MAX | _ADAPTIVE).get(operation) or (operation, _WITH_INDICES.get(operation, 0))
    mean, indices = with_indices(input.expected, *args, **kwargs)
    places = indices.flatten(-rank)
    variance = input.variance.flatten(-rank).gather(-1, places).view(mean.shape)
    pooled = input.like(mean, variance, input.shared).tied(input.ties)
    return (pooled, indices) if indices_wanted else pooled


@RULES.rule(torch.max, Tensor.max, torch.amax, Tensor.amax, exact=False, assumes=CO_POOLING)
def max_along(operation: Operation, input: Any, dim: Any, keepdim: bool = False) -> Any:
    """The largest along one axis."""
    if not isinstance(dim, int):
        missing(operation, first_random(input, dim), "it has a rule for the largest along one axis")
    mean, indices = input.expected.max(dim, keepdim=True)
    variance = input.variance.gather(dim, indices)
    shared = input.shared
    if shared is not None and shared.shape[dim] > 1:
        shared = None
    if not keepdim:
        mean, indices, variance = (t.squeeze(dim) for t in (mean, indices, variance))
        shared = None if shared is None else shared.squeeze(dim)
    pooled = input.like(mean, variance, shared)
    return pooled if operation in (torch.amax, Tensor.amax) else torch.return_types.max((pooled, indices))


@RULES.rule(*_AVERAGE, exact=True, assumes="independent entries, or positions with a shared part")
def average_pool(
    operation: Operation,
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> MomentTensor:
    """Var = Σ a² σ², where a is 1/divisor inside the window."""
    rank = _AVERAGE[operation]
    sizes = [_each(value, rank) for value in (kernel_size, stride or kernel_size, padding)]
    options = [ceil_mode, count_include_pad, *([] if rank == 1 else [divisor_override])]

    def apply(value: Tensor) -> Tensor:
        return operation(value, kernel_size, stride, padding, *options)

    def along(eye: Tensor, axis: int) -> Tensor:
        matrix = F.avg_pool1d(eye, sizes[0][axis], sizes[1][axis], sizes[2][axis], ceil_mode, count_include_pad)
        if divisor_override is None:
            return matrix
        each: float = float(divisor_override) ** (-1 / rank)
        return (matrix > 0).to(matrix.dtype) * each

    return resample(input, apply, along, rank)


@RULES.rule(*_ADAPTIVE_AVERAGE, exact=True, assumes="as for avg_pool")
def adaptive_average_pool(operation: Operation, input: Any, output_size: Any) -> MomentTensor:
    """Averages over windows that cover the input."""
    rank = _ADAPTIVE_AVERAGE[operation]
    spatial = input.expected.shape[-rank:]
    sizes = [n if size is None else size for n, size in zip(spatial, _each(output_size, rank), strict=True)]
    return resample(
        input,
        lambda value: operation(value, output_size),
        lambda eye, axis: F.adaptive_avg_pool1d(eye, sizes[axis]),
        rank,
    )


def _each(value: Any, rank: int) -> list[Any]:
    values = [value] if isinstance(value, int) or value is None else list(value)
    return values * rank if len(values) == 1 else values
