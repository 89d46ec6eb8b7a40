"""Where scales start: a constant, the papers' ρ ~ N(m, s), or a share of each weight's size."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leanbayes.errors import InputError

__all__ = ["GaussianRho", "InitialScale", "RelativeScale", "initial_rho", "inverse_softplus"]


@dataclass(frozen=True)
class GaussianRho:
    """ρ ~ N(mean, std) with σ = softplus(ρ), as 001's Algorithm 1 starts its Bayesian weights.

    >>> GaussianRho(mean=-3.0, std=0.1)
    GaussianRho(mean=-3.0, std=0.1)
    """

    mean: float = -3.0
    std: float = 0.1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and math.isfinite(self.std) and self.std >= 0):
            raise InputError(f"GaussianRho needs a finite mean and a std of at least 0, got {self}")


@dataclass(frozen=True)
class RelativeScale:
    """σ = max(factor·|w|, floor): each weight starts as unsure as it is large.

    >>> RelativeScale(0.1)
    RelativeScale(factor=0.1, floor=0.0001)
    """

    factor: float = 0.1
    floor: float = 1e-4

    def __post_init__(self) -> None:
        if not (0 < self.factor < math.inf and 0 < self.floor < math.inf):
            raise InputError(f"RelativeScale needs a positive finite factor and floor, got {self}")


InitialScale = float | GaussianRho | RelativeScale


def inverse_softplus(scale: Tensor) -> Tensor:
    """ρ such that softplus(ρ) = scale, stable for small and large scales.

    >>> torch.nn.functional.softplus(inverse_softplus(torch.tensor([1e-6, 1.0, 50.0])))
    tensor([1.0000e-06, 1.0000e+00, 5.0000e+01])
    """
    return scale + torch.log(-torch.expm1(-scale))


def initial_rho(start: InitialScale, weights: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """The ρ that ``start`` describes, one for each of ``weights``."""
    if isinstance(start, GaussianRho):
        noise = torch.randn(weights.shape, dtype=weights.dtype, device=weights.device, generator=generator)
        return start.mean + start.std * noise
    if isinstance(start, RelativeScale):
        return inverse_softplus((start.factor * weights.detach().abs()).clamp_min(start.floor))
    return inverse_softplus(torch.full_like(weights, start, requires_grad=False))
