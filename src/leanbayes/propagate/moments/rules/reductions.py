"""Sums and means over axes: independent parts add their variances, n shared parts are n times one of them."""

from typing import Any

import torch
from torch import Tensor

from leanbayes.propagate.linear_ops import Operation
from leanbayes.propagate.moments.shared import sum_variance
from leanbayes.propagate.moments.tensor import RULES, MomentTensor, Ties
from leanbayes.propagate.moments.ties import averaged

__all__ = ["total"]

MEANS = (torch.mean, Tensor.mean)


@RULES.rule(*MEANS, torch.sum, Tensor.sum, exact=True, assumes="independent entries, or positions with a shared part")
def total(
    operation: Operation,
    input: MomentTensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    axis: Any = None,
    dtype: Any = None,
) -> MomentTensor:
    """Σ z or the mean of z."""
    dim = axis if dim is None else dim
    mean = operation(input.expected, dim=dim, keepdim=keepdim, dtype=dtype)
    given = range(input.dim()) if dim is None or dim == () else [dim] if isinstance(dim, int) else dim
    axes = tuple(sorted(a % input.dim() for a in given))
    if not axes:
        return input.like(mean, input.variance)
    variance, shared = sum_variance(input.variance, input.shared, axes)
    if operation in MEANS:
        count = 1
        for a in axes:
            count *= input.shape[a]
        variance = variance / count**2
    if shared is not None and not keepdim:
        shared = shared.squeeze(axes)
    ties = None
    if input.ties is not None and input.ties.loadings is not None and set(axes) <= set(_common(input.ties.loadings)):
        ties = averaged(input, variance, 1.0 if operation in MEANS else float(input.numel() // variance.numel()))
        if ties is not None and ties.loadings is not None and not keepdim:
            ties = Ties(ties.loadings.squeeze(tuple(1 + a for a in axes)), None)
    return input.like(mean, variance.reshape(mean.shape).to(mean.dtype), shared).tied(ties)


def _common(loadings: Tensor) -> list[int]:
    return [axis for axis, n in enumerate(loadings.shape[1:]) if n == 1]
