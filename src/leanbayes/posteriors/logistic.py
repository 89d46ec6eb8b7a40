"""The Logistic posterior: w = μ + σξ with density e^−ξ/(1 + e^−ξ)² of ξ."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.posteriors.location_scale import LocationScale
from leanbayes.posteriors.special import exponential
from leanbayes.posteriors.terms import Term

__all__ = ["Logistic"]


@dataclass(frozen=True)
class Logistic(LocationScale):
    """w ~ Logistic(μ, σ), of variance π²σ²/3 (003, Table 1, location-scale).

    >>> Logistic().variance(torch.tensor(1.0))
    tensor(3.2899)
    """

    def noise(self, like: Tensor, samples: int | None, generator: torch.Generator | None) -> Tensor:
        """ξ = log(E₁/E₂) with Exponential E."""
        shape = like.shape if samples is None else (samples, *like.shape)
        with torch.no_grad():
            return exponential(shape, like, generator).log_().sub_(exponential(shape, like, generator).log_())

    def log_noise(self, noise: Tensor) -> Tensor:
        """−ξ − 2 log(1 + e^−ξ)."""
        return -noise - 2 * F.softplus(-noise, threshold=40)

    def expected(self, term: Term, count: int) -> float:  # noqa: ARG002
        """E ξ^k = 2 k! Σ (−1)^{n−1} n^−k = 2 k! (1 − 2^{1−k}) ζ(k) for even k."""
        k = term.order
        if term.kind == "log" or k != int(k) or k < 0:
            return math.inf
        if k == 0 or k % 2:
            return float(k == 0)
        zeta: float = torch.special.zeta(torch.tensor(k, dtype=torch.float64), 1).item()
        return 2 * math.gamma(k + 1) * (1 - 2 ** (1 - k)) * zeta

    def noise_entropy(self, count: int) -> float:
        """2 a coordinate."""
        return 2.0 * count
