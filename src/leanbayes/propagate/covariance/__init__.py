"""``covariance``: mean and full covariance of each example in one pass: the original VDP, whose diagonal 002 keeps."""

import torch
from torch import Tensor

from leanbayes.posteriors import RandomWeight
from leanbayes.propagate.covariance import rules
from leanbayes.propagate.covariance.joint import correlated, root
from leanbayes.propagate.covariance.tensor import RULES, CovarianceTensor, Setting, full

__all__ = ["RULES", "CovarianceTensor", "Setting", "correlated", "draw_covariance", "full", "root", "rules", "stand_in"]


def stand_in(weight: RandomWeight, generator: torch.Generator | None) -> Tensor:  # noqa: ARG001
    """The weight by its mean and variance; nothing is drawn before the output."""
    return CovarianceTensor.of_weight(weight, Setting())


def draw_covariance(value: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One draw of a Gaussian with these moments, all entries of an example together; a plain tensor as it is."""
    if not isinstance(value, CovarianceTensor):
        return value
    if value.weight is not None:  # returned as it is
        return value.weight.draw(generator)
    mean = value.expected
    noise = torch.randn(mean.shape, dtype=mean.dtype, device=mean.device, generator=generator)
    return mean + correlated(root(full(value)), noise)
