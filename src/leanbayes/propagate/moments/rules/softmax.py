"""Softmax and log-softmax to first order, with the full Jacobian (002, eq. 8, 9)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.propagate.linear_ops import Operation
from leanbayes.propagate.moments.tensor import RULES, MomentTensor

__all__ = ["log_softmax", "softmax"]

ASSUMES = "independent inputs; first order, so small variances"


@RULES.rule(F.softmax, torch.softmax, Tensor.softmax, torch.special.softmax, exact=False, assumes=ASSUMES)
def softmax(operation: Operation, input: Any, dim: int | None = None, *args: Any, **kwargs: Any) -> MomentTensor:
    """Var_i = p_i² [(1-p_i)² σ_i² + Σ_{j≠i} p_j² σ_j²]."""
    mean = operation(input.expected, dim, *args, **kwargs)
    return _result(input, mean, mean.square() * _spread(mean, input.variance, dim), dim)


@RULES.rule(F.log_softmax, torch.log_softmax, Tensor.log_softmax, exact=False, assumes=ASSUMES)
def log_softmax(operation: Operation, input: Any, dim: int | None = None, *args: Any, **kwargs: Any) -> MomentTensor:
    """Var_i = (1-p_i)² σ_i² + Σ_{j≠i} p_j² σ_j²."""
    mean = operation(input.expected, dim, *args, **kwargs)
    return _result(input, mean, _spread(mean.exp(), input.variance, dim), dim)


def _spread(p: Tensor, variance: Tensor, dim: int | None) -> Tensor:
    each = p.square() * variance
    axis = _axis(p, dim)
    return (1 - p).square() * variance + (each.sum(axis, keepdim=True) - each).clamp_min(0)


def _axis(value: Tensor, dim: int | None) -> int:
    return (0 if value.dim() in (0, 1, 3) else 1) if dim is None else dim  # as torch chooses


def _result(x: MomentTensor, mean: Tensor, variance: Tensor, dim: int | None) -> MomentTensor:
    axis = _axis(mean, dim)
    kept = x.shared is not None and x.shared.shape[axis] == mean.shape[axis]  # what all have in common cancels
    return x.like(mean, variance, x.shared if kept else None)
