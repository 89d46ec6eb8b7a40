"""Tensors that are known by the mean and the covariance of each example, and the rules of operations on them."""

import torch
from torch import Tensor

from leanbayes.propagate.covariance import rules
from leanbayes.propagate.covariance.joint import correlated, root
from leanbayes.propagate.covariance.tensor import RULES, CovarianceTensor, Setting, full

__all__ = ["RULES", "CovarianceTensor", "Setting", "correlated", "draw_covariance", "full", "root", "rules"]


def draw_covariance(value: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw a Gaussian with these moments once, all entries of an example together; return a plain tensor as it is."""
    if not isinstance(value, CovarianceTensor):
        return value
    if value.weight is not None:  # the model returned a weight itself
        return value.weight.draw(generator)
    mean = value.expected
    noise = torch.randn(mean.shape, dtype=mean.dtype, device=mean.device, generator=generator)
    return mean + correlated(root(full(value)), noise)
