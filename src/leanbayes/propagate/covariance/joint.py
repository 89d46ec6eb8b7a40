"""Correlated noise from independent noise, by the root of a covariance that may be singular."""

import torch
from torch import Tensor

from leanbayes._ops.safe_sqrt import SafeSqrt
from leanbayes.errors import NonFinite

__all__ = ["correlated", "root"]


def root(covariance: Tensor) -> Tensor:
    """L with L Lᵀ = Σ (N, D, D); gradients reach Σ.

    Of the correlations, so that numbers of any size are treated alike. A singular Σ, or one that rounding has made
    slightly negative, has its correlations weakened until it is not: by a millionth, as a rule. Variances stay.

    >>> found = root(torch.tensor([[[4.0, 2.0], [2.0, 1.0]]]))
    >>> (found @ found.mT).round(decimals=3)
    tensor([[[4., 2.],
             [2., 1.]]])
    """
    wide = covariance if covariance.dtype.itemsize >= 4 else covariance.float()
    deviation = SafeSqrt.apply(wide.diagonal(dim1=-2, dim2=-1))
    inverse = torch.where(deviation > 0, deviation, 1).reciprocal()
    same = torch.eye(wide.shape[-1], dtype=torch.bool, device=wide.device)
    correlation = torch.where(same, 1, wide * inverse.unsqueeze(-1) * inverse.unsqueeze(-2))
    for jitter in (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2):
        weakened = correlation if jitter == 0 else torch.where(same, 1, correlation / (1 + jitter))
        factor, failed = torch.linalg.cholesky_ex(weakened)
        if not failed.any():
            found: Tensor = deviation.unsqueeze(-1) * factor
            return found.to(covariance.dtype)
    raise NonFinite("a covariance has NaN, or is far from positive; look for NaN in the inputs and for scales too wide")


def correlated(factor: Tensor, noise: Tensor) -> Tensor:
    """L ξ for each example: ``noise`` (N, ...) is flattened to D numbers, and shaped back."""
    return (factor @ noise.reshape(len(noise), -1, 1)).view(noise.shape)
