"""Correlated noise from independent noise, through the root of a covariance that may be singular."""

import torch
from torch import Tensor

from leanbayes._ops.safe_sqrt import SafeSqrt
from leanbayes.errors import NonFinite

__all__ = ["correlated", "root"]


def root(covariance: Tensor) -> Tensor:
    """Compute L with L Lᵀ = Σ (N, D, D); gradients reach Σ.

    The root is taken of the correlations, so that numbers of any size are treated alike. If Σ is singular, or slightly
    negative because of rounding, its correlations are weakened until it is positive, usually by a millionth. The
    variances stay the same.

    >>> factor = root(torch.tensor([[[4.0, 2.0], [2.0, 1.0]]]))
    >>> (factor @ factor.mT).round(decimals=3)
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
            scaled: Tensor = deviation.unsqueeze(-1) * factor
            return scaled.to(covariance.dtype)
    raise NonFinite("a covariance has NaN, or is far from positive; look for NaN in the inputs and for scales too wide")


def correlated(factor: Tensor, noise: Tensor) -> Tensor:
    """Compute L ξ for each example. ``noise`` (N, ...) is flattened to D numbers, and the result has its shape."""
    return (factor @ noise.reshape(len(noise), -1, 1)).view(noise.shape)
