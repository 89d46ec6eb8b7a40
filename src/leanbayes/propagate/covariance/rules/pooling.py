"""Pooling, resizing and reductions are linear maps of the positions; max pooling follows the largest mean."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.propagate.covariance.rules.common import linear_map
from leanbayes.propagate.covariance.tensor import RULES, CovarianceTensor, merge, only_first
from leanbayes.propagate.dispatch import missing
from leanbayes.propagate.linear_ops import Operation

__all__ = ["average", "max_pool", "pad", "total"]

_RANKS = {name: rank for rank in (1, 2, 3) for name in (f"max_pool{rank}d", f"adaptive_max_pool{rank}d")}
_MAX: dict[Any, tuple[Any, int]] = {
    spelling: (getattr(F, f"{name}_with_indices"), rank)
    for name, rank in _RANKS.items()
    for spelling in (getattr(F, name), getattr(F, f"{name}_with_indices"))
}
_AVERAGE: dict[Any, int] = {
    getattr(F, f"{kind}avg_pool{rank}d"): rank for rank in (1, 2, 3) for kind in ("", "adaptive_")
}


@RULES.rule(*_MAX, exact=False, assumes="the entry with the largest mean is the largest (co-pooling, VDP++)")
def max_pool(operation: Operation, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Take the mean and covariance at the arg max of the means (co-pooling)."""
    wanted = kwargs.pop("return_indices", False) or operation is _MAX[operation][0]
    with_indices, rank = _MAX[operation]
    x = only_first(operation, input, *args, *kwargs.values())
    mean, indices = with_indices(x.expected, *args, **kwargs)
    positions = math.prod(x.shape[-rank:])
    channels = math.prod(x.shape[1:]) // positions
    blocks = merge(x, channels)
    groups = blocks.shape[1]
    first = positions * torch.arange(channels // groups, device=mean.device).view(-1, 1)
    places = indices.reshape(len(mean), groups, channels // groups, -1) + first
    places = places.flatten(2).unsqueeze(-1)  # (N, G, B')
    half = blocks.gather(2, places.expand(*places.shape[:3], blocks.shape[3]))
    chosen = half.gather(3, places.mT.expand(*half.shape[:3], -1))
    pooled = x.like(mean, chosen)
    return (pooled, indices) if wanted else pooled


@RULES.rule(*_AVERAGE, F.interpolate, exact=True)
def average(operation: Operation, input: Any, *args: Any, **kwargs: Any) -> CovarianceTensor:
    """Compute A Σ Aᵀ, where A is the average."""
    x = only_first(operation, input, *args, *kwargs.values())
    return linear_map(
        x,
        operation(x.expected, *args, **kwargs),
        lambda value: operation(value, *args, **kwargs),
        channelwise=x.dim() == _AVERAGE.get(operation, x.dim() - 2) + 2,  # else the first axis is that of channels
    )


@RULES.rule(F.pad, exact=True)
def pad(operation: Operation, input: Any, pad: Any, mode: str = "constant", value: Any = None) -> CovarianceTensor:
    """Pad with constants, which are not random, or with copies, which are fully correlated."""
    x = only_first(operation, input, value)
    if len(pad) > 2 * (x.dim() - 1):
        missing(operation, x, "it adds examples")
    channelwise = len(pad) <= 2 * (x.dim() - 2)
    zero = 0 if mode == "constant" else None
    return linear_map(
        x, operation(x.expected, pad, mode, value), lambda v: operation(v, pad, mode, zero), channelwise=channelwise
    )


@RULES.rule(torch.mean, Tensor.mean, torch.sum, Tensor.sum, exact=True)
def total(
    operation: Operation, input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None
) -> CovarianceTensor:
    """Compute the sum or the mean of z over axes of each example."""
    x = only_first(operation, input)
    dim = axis if dim is None else dim
    given = () if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    axes = tuple(sorted(a % x.dim() for a in given))
    if not axes or axes[0] == 0:
        missing(operation, x, "it joins the examples; give the axes after the first")
    return linear_map(
        x,
        operation(x.expected, axes, keepdim=keepdim),
        lambda value: operation(value, axes, keepdim=keepdim),
        channelwise=axes[0] > 1,
    )
