"""Batch norm by fixed statistics, dropout, and softmax to first order."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.propagate.covariance.rules.common import (
    parameter,
    refuse_weight,
    sandwich,
    scaled,
    second_moments,
    summed,
)
from leanbayes.propagate.covariance.tensor import RULES, CovarianceTensor, expected_of, first_random, merge, only_first
from leanbayes.propagate.linear_ops import Operation

__all__ = ["batch_norm", "dropout", "log_softmax", "softmax"]

FIRST_ORDER = "small variances: first order, with the full Jacobian (VDP++, eq. 8 and 9)"


@RULES.rule(F.batch_norm, exact=False, assumes="statistics do not move: those of the means; exact in eval mode")
def batch_norm(
    operation: Operation,
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> CovarianceTensor:
    """Compute y = γx̂ + β with x̂ = (x - mean)/√(Var + ε); γ and β may be random weights."""
    random = first_random(input, weight, bias)
    refuse_weight(operation, input)
    x = expected_of(input)
    (gain, gain_variance), (offset, offset_variance) = parameter(operation, weight), parameter(operation, bias)
    shape = [1, -1] + [1] * (x.dim() - 2)
    if training:
        variance, centre = torch.var_mean(x, [a for a in range(x.dim()) if a != 1], correction=0, keepdim=True)
    else:
        centre, variance = running_mean.view(shape), running_var.view(shape)
    mean = operation(x, running_mean, running_var, gain, offset, training, momentum, eps)
    scale = (variance + eps).rsqrt()
    if isinstance(input, CovarianceTensor):
        normed = input.like((x - centre) * scale, scaled(input, scale))
    else:
        normed = CovarianceTensor.independent((x - centre) * scale, torch.zeros_like(x), random.setting)
    total = normed.like(mean, normed.blocks if gain is None else scaled(normed, gain.view(shape)))
    positions = mean[0, 0].numel()
    own: Tensor | None = None  # of each channel: its positions share γ and β
    if gain_variance is not None:
        own = gain_variance.view(-1, 1, 1) * second_moments(normed)
    if offset_variance is not None:
        added = offset_variance.view(-1, 1, 1).expand(*mean.shape[:2], positions, positions)
        own = added if own is None else own + added
    return total if own is None else summed(total, total.like(mean, own))


@RULES.rule(
    F.dropout,
    torch.dropout,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    torch.feature_dropout,
    exact=True,
    assumes="the mask is drawn, and not part of the covariance",
)
def dropout(operation: Operation, input: Any, *args: Any, **kwargs: Any) -> CovarianceTensor:
    """Do nothing in eval mode; in train mode y = m∘x, where m is the scaled mask."""
    x = only_first(operation, input, *args, *kwargs.values())
    if not kwargs.get("training", kwargs.get("train", args[1] if len(args) > 1 else True)):
        return x
    mask = operation(torch.ones_like(x.expected), *args, **kwargs)
    return x.like(x.expected * mask, scaled(x, mask))


@RULES.rule(F.softmax, torch.softmax, Tensor.softmax, torch.special.softmax, exact=False, assumes=FIRST_ORDER)
def softmax(operation: Operation, input: Any, dim: int | None = None, *args: Any, **kwargs: Any) -> CovarianceTensor:
    """Pass the softmax to first order, with the Jacobian diag(p) - p pᵀ."""
    x = only_first(operation, input)
    p = operation(x.expected, dim, *args, **kwargs)
    axis = _axis(p, dim)
    return _to_first_order(x, p, lambda v: p.unsqueeze(1) * (v - (p.unsqueeze(1) * v).sum(axis, keepdim=True)))


@RULES.rule(F.log_softmax, torch.log_softmax, Tensor.log_softmax, exact=False, assumes=FIRST_ORDER)
def log_softmax(
    operation: Operation, input: Any, dim: int | None = None, *args: Any, **kwargs: Any
) -> CovarianceTensor:
    """Pass the log-softmax to first order, with the Jacobian I - 1 pᵀ."""
    x = only_first(operation, input)
    mean = operation(x.expected, dim, *args, **kwargs)
    p, axis = mean.exp(), _axis(mean, dim)
    return _to_first_order(x, mean, lambda v: v - (p.unsqueeze(1) * v).sum(axis, keepdim=True))


def _axis(value: Tensor, dim: int | None) -> int:
    """Return the axis counted from the end, because rows stand before the features."""
    chosen = (0 if value.dim() in (0, 1, 3) else 1) if dim is None else dim  # as torch chooses
    return chosen if chosen < 0 else chosen - value.dim()


def _to_first_order(x: CovarianceTensor, mean: Tensor, jacobian: Callable[[Tensor], Tensor]) -> CovarianceTensor:
    """Compute J Σ Jᵀ, where ``jacobian`` maps rows (N, rows, ...)."""

    def rows(value: Tensor) -> Tensor:
        return jacobian(value.reshape(len(value), -1, *x.shape[1:])).reshape(value.shape)

    return x.like(mean, sandwich(merge(x, 1), rows))
