"""The Normal posterior: w = μ + softplus(ρ)·ξ, ξ ~ N(0, 1)."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution
from torch.distributions import Normal as TorchNormal

from leanbayes.errors import InputError
from leanbayes.posterior.family import Family
from leanbayes.posterior.initial import GaussianRho, InitialScale, RelativeScale, initial_rho
from leanbayes.posterior.noise import normal_and_sums, shifted_normal, standard_normal

__all__ = ["Normal"]


@dataclass(frozen=True)
class Normal(Family):
    """w ~ N(μ, σ²) with σ = softplus(ρ) = log(1 + e^ρ) (001, Algorithm 1, line 9).

    ``init_scale`` is a constant σ, a `GaussianRho` (the papers' ρ ~ N(m, s)) or a `RelativeScale` (a share of |w|).

    >>> Normal(init_scale=0.05).spread(Normal(init_scale=0.05).initial(torch.zeros(2), None))
    tensor([0.0500, 0.0500])
    """

    init_scale: InitialScale = 0.05

    def __post_init__(self) -> None:
        if isinstance(self.init_scale, GaussianRho | RelativeScale):
            return
        if not (isinstance(self.init_scale, int | float) and 0 < self.init_scale < math.inf):
            raise InputError(
                "init_scale must be a positive finite number, a GaussianRho or a RelativeScale, "
                f"got {self.init_scale!r}"
            )

    def initial(self, weights: Tensor, generator: torch.Generator | None) -> Tensor:
        """ρ as ``init_scale`` says."""
        return initial_rho(self.init_scale, weights, generator)

    def spread(self, rho: Tensor) -> Tensor:
        """σ = softplus(ρ)."""
        return F.softplus(rho, threshold=40)  # beyond 40, e^-ρ is below the last digit of float64

    def noise(self, like: Tensor, samples: int | None, generator: torch.Generator | None) -> Tensor:
        """ξ ~ N(0, 1)."""
        shape = like.shape if samples is None else (samples, *like.shape)
        return standard_normal(shape, like, generator)

    def perturbation(self, spread: Tensor, noise: Tensor) -> Tensor:
        """σξ."""
        return spread * noise

    def sample(self, mean: Tensor, spread: Tensor, noise: Tensor, out: Tensor | None = None) -> Tensor:
        """μ + σξ in one sweep."""
        return torch.addcmul(mean, spread, noise, out=out)

    def draw(
        self, mean: Tensor, spread: Tensor, generator: torch.Generator | None, out: Tensor | None = None
    ) -> Tensor:
        """μ + σξ, on the CPU without storing ξ."""
        return shifted_normal(mean, spread, generator, out)

    def draw_and_sums(
        self, mean: Tensor, rho: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor] | None:
        """μ + σξ with the sums of which an exact KL is made."""
        return normal_and_sums(mean, rho, generator)

    def variance(self, spread: Tensor) -> Tensor:
        """σ²."""
        return spread.square()

    def distribution(self, mean: Tensor, spread: Tensor) -> Distribution:
        """N(μ, σ²)."""
        return TorchNormal(mean, spread, validate_args=False)
