"""Softmax and log-softmax to first order, with the full Jacobian (VDP++, eq. 8 and 9)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.propagate.linear_ops import Operation
from leanbayes.propagate.moments.correlations import Correlations
from leanbayes.propagate.moments.kinds import RULES
from leanbayes.propagate.moments.tensor import MomentTensor

__all__ = ["log_softmax", "softmax"]

ASSUMES = "independent inputs with small variances (first order)"


@RULES.rule(F.softmax, torch.softmax, Tensor.softmax, torch.special.softmax, exact=False, assumes=ASSUMES)
def softmax(operation: Operation, input: Any, dim: int | None = None, *args: Any, **kwargs: Any) -> MomentTensor:
    """Compute Var_i = p_i² [(1 − p_i)² σ_i² + Σ_{j≠i} p_j² σ_j²]."""
    mean = operation(input.expected, dim, *args, **kwargs)
    return _result(input, mean, mean.square() * _spread(mean, input.variance, dim), dim)


@RULES.rule(F.log_softmax, torch.log_softmax, Tensor.log_softmax, exact=False, assumes=ASSUMES)
def log_softmax(operation: Operation, input: Any, dim: int | None = None, *args: Any, **kwargs: Any) -> MomentTensor:
    """Compute Var_i = (1 − p_i)² σ_i² + Σ_{j≠i} p_j² σ_j²."""
    mean = operation(input.expected, dim, *args, **kwargs)
    return _result(input, mean, _spread(mean.exp(), input.variance, dim), dim)


def _spread(p: Tensor, variance: Tensor, dim: int | None) -> Tensor:
    weighted = p.square() * variance
    others = (weighted.sum(_axis(p, dim), keepdim=True) - weighted).clamp_min(0)
    return (1 - p).square() * variance + others


def _axis(value: Tensor, dim: int | None) -> int:
    return (0 if value.dim() in (0, 1, 3) else 1) if dim is None else dim  # as torch chooses


def _result(x: MomentTensor, mean: Tensor, variance: Tensor, dim: int | None) -> MomentTensor:
    """Return the result; softmax does not change if all its inputs move together, so their common noise is gone."""
    axis, rho = _axis(mean, dim), x.correlations.positions
    left = rho if rho is not None and rho.shape[axis] == mean.shape[axis] else None
    return x.like(mean, variance, Correlations(left))
