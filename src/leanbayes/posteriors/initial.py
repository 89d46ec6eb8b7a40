"""Where scales start: at a constant, at a random ρ ~ N(m, s), or at a share of the size of each weight."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leanbayes.errors import InputError

__all__ = ["GaussianRho", "InitialScale", "RelativeScale", "initial_rho", "inverse_softplus"]


@dataclass(frozen=True)
class GaussianRho:
    """The raw parameter starts at ρ ~ N(mean, std²), and σ = softplus(ρ).

    The paper on sensitivity-guided subnetworks starts its random weights so (Algorithm 1).

    Args:
        mean: the mean of ρ.
        std: the standard deviation of ρ.

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
    """The scale starts at σ = max(factor·|w|, floor), so a large weight starts less certain than a small one.

    Args:
        factor: the share of |w|.
        floor: the smallest scale.

    >>> RelativeScale(0.1)
    RelativeScale(factor=0.1, floor=0.0001)
    """

    factor: float = 0.1
    floor: float = 1e-4

    def __post_init__(self) -> None:
        if not (0 < self.factor < math.inf and 0 < self.floor < math.inf):
            raise InputError(f"RelativeScale needs a positive finite factor and floor, got {self}")


InitialScale = float | GaussianRho | RelativeScale
"""A constant σ, a `GaussianRho` or a `RelativeScale`."""


def inverse_softplus(scale: Tensor) -> Tensor:
    """Return the ρ with softplus(ρ) = scale, stably for small and large scales.

    >>> torch.nn.functional.softplus(inverse_softplus(torch.tensor([1e-6, 1.0, 50.0])))
    tensor([1.0000e-06, 1.0000e+00, 5.0000e+01])
    """
    return scale + torch.log(-torch.expm1(-scale))


def initial_rho(start: InitialScale, weights: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Return the ρ that ``start`` describes, one for each of ``weights``."""
    if isinstance(start, GaussianRho):
        noise = torch.randn(weights.shape, dtype=weights.dtype, device=weights.device, generator=generator)
        return start.mean + start.std * noise
    if isinstance(start, RelativeScale):
        return inverse_softplus((start.factor * weights.detach().abs()).clamp_min(start.floor))
    return inverse_softplus(torch.full_like(weights, start, requires_grad=False))
