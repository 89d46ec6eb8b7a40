"""Dropout: the identity in eval mode; in train mode one random mask for means and standard deviations alike."""

from typing import Any

import torch
import torch.nn.functional as F

from leanbayes.propagate.linear_ops import Operation
from leanbayes.propagate.moments.kinds import RULES
from leanbayes.propagate.moments.tensor import MomentTensor, missing

__all__ = ["alpha_dropout", "dropout"]


@RULES.rule(
    *(F.dropout, torch.dropout, F.dropout1d, F.dropout2d, F.dropout3d, torch.feature_dropout),
    exact=True,
    assumes="the mask is drawn, and not part of the variance",
)
def dropout(operation: Operation, input: MomentTensor, *args: Any, **kwargs: Any) -> MomentTensor:
    """Compute the moments of y = m∘x with the scaled mask m: Var y = m²∘Var x."""
    training = kwargs.get("training", kwargs.get("train", args[1] if len(args) > 1 else True))
    if not training:
        return input
    mask = operation(torch.ones_like(input.expected), *args, **kwargs)
    correlations = input.correlations.positions_alone()
    return input.like(input.expected * mask, input.variance * mask.square(), correlations)


@RULES.rule(F.alpha_dropout, F.feature_alpha_dropout, exact=True, assumes="eval mode")
def alpha_dropout(operation: Operation, input: MomentTensor, p: float = 0.5, training: bool = False) -> MomentTensor:
    """Return the input in eval mode; there is no rule for train mode."""
    if training and p > 0:
        missing(operation, input, "it has a rule in eval mode only")
    return input
