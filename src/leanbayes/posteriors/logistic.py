"""The logistic posterior, w = μ + σξ, where ξ has the density e^−ξ/(1 + e^−ξ)²."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.posteriors._special import exponential
from leanbayes.posteriors.location_scale import LocationScale
from leanbayes.posteriors.terms import Term

__all__ = ["Logistic"]


@dataclass(frozen=True)
class Logistic(LocationScale):
    """The weight is w ~ Logistic(μ, σ), with variance π²σ²/3 (Nazarovs et al. 2021, Table 1).

    Args:
        init_scale: where σ starts; see `Normal`.

    >>> Logistic().variance(torch.tensor(1.0))
    tensor(3.2899)
    """

    def noise(self, like: Tensor, samples: int | None, generator: torch.Generator | None) -> Tensor:
        """Draw ξ = log(E₁/E₂) with Exponential E₁ and E₂."""
        shape = like.shape if samples is None else (samples, *like.shape)
        with torch.no_grad():
            return exponential(shape, like, generator).log_().sub_(exponential(shape, like, generator).log_())

    def log_noise(self, noise: Tensor) -> Tensor:
        """Return −ξ − 2 log(1 + e^−ξ)."""
        return -noise - 2 * F.softplus(-noise, threshold=40)

    def expected(self, term: Term, count: int) -> float:  # noqa: ARG002
        """Return E ξ^k = 2 k! Σ (−1)^{n−1} n^−k = 2 k! (1 − 2^{1−k}) ζ(k) for even k, and 0 for odd k."""
        k = term.order
        if term.kind == "log" or k != int(k) or k < 0:
            return math.inf
        if k == 0 or k % 2:
            return float(k == 0)
        zeta: float = torch.special.zeta(torch.tensor(k, dtype=torch.float64), 1).item()
        return 2 * math.gamma(k + 1) * (1 - 2 ** (1 - k)) * zeta

    def noise_entropy(self, count: int) -> float:
        """Return 2 for each coordinate."""
        return 2.0 * count
