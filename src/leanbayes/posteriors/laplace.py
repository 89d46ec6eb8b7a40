"""The Laplace posterior, w = μ + σξ, where ξ has the density e^−|ξ|/2."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.distributions import Laplace as TorchLaplace

from leanbayes.posteriors._special import exponential
from leanbayes.posteriors.location_scale import LocationScale
from leanbayes.posteriors.terms import Term

__all__ = ["Laplace"]


@dataclass(frozen=True)
class Laplace(LocationScale):
    """The weight is w ~ Laplace(μ, σ), with variance 2σ² (Nazarovs et al. 2021, Table 1).

    Args:
        init_scale: where σ starts; see `Normal`.

    >>> Laplace().variance(torch.tensor(0.5))
    tensor(0.5000)
    """

    def noise(self, like: Tensor, samples: int | None, generator: torch.Generator | None) -> Tensor:
        """Draw ξ = E₁ − E₂ with Exponential E₁ and E₂."""
        shape = like.shape if samples is None else (samples, *like.shape)
        with torch.no_grad():
            return exponential(shape, like, generator).sub_(exponential(shape, like, generator))

    def distribution(self, mean: Tensor, spread: Tensor) -> Distribution:
        """Return the Laplace distribution of torch."""
        return TorchLaplace(mean, spread, validate_args=False)

    def log_noise(self, noise: Tensor) -> Tensor:
        """Return −|ξ| − log 2."""
        return -noise.abs() - math.log(2)

    def expected(self, term: Term, count: int) -> float:  # noqa: ARG002
        """Return E ξ^k = k! for even k, and 0 for odd k."""
        k = term.order
        if term.kind == "log" or k != int(k) or k < 0:
            return math.inf
        return 0.0 if k % 2 else math.gamma(k + 1)

    def noise_entropy(self, count: int) -> float:
        """Return 1 + log 2 for each coordinate."""
        return count * (1 + math.log(2))
