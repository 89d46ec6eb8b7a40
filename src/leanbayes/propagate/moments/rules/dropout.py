"""Dropout: nothing in eval mode; in train mode one random mask for mean and standard deviation alike."""

from typing import Any

import torch
import torch.nn.functional as F

from leanbayes.propagate.linear_ops import Operation
from leanbayes.propagate.moments.tensor import RULES, MomentTensor, missing

__all__ = ["alpha_dropout", "dropout"]


@RULES.rule(
    *(F.dropout, torch.dropout, F.dropout1d, F.dropout2d, F.dropout3d, torch.feature_dropout),
    exact=True,
    assumes="the mask is drawn, and not part of the variance",
)
def dropout(operation: Operation, input: MomentTensor, *args: Any, **kwargs: Any) -> MomentTensor:
    """y = m∘x, Var y = m²∘Var x with m the scaled mask."""
    training = kwargs.get("training", kwargs.get("train", args[1] if len(args) > 1 else True))
    if not training:
        return input
    mask = operation(torch.ones_like(input.expected), *args, **kwargs)
    return input.like(input.expected * mask, input.variance * mask.square(), input.shared)


@RULES.rule(F.alpha_dropout, F.feature_alpha_dropout, exact=True, assumes="eval mode")
def alpha_dropout(operation: Operation, input: MomentTensor, p: float = 0.5, training: bool = False) -> MomentTensor:
    """Nothing in eval mode, no rule in train mode."""
    if training and p > 0:
        missing(operation, input, "it has a rule in eval mode only")
    return input
