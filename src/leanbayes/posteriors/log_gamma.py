"""The Log-Gamma posterior, w = μ + σ(ξ − ψ(k)), where ξ is the logarithm of a Gamma(k, 1) number."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leanbayes.posteriors._special import digamma, polygamma, standard_gamma
from leanbayes.posteriors.location_scale import LocationScale, check_positive
from leanbayes.posteriors.terms import Term

__all__ = ["LogGamma"]


@dataclass(frozen=True)
class LogGamma(LocationScale):
    """The weight is w = μ + σ(log G − ψ(k)) with G ~ Gamma(k) (Nazarovs et al. 2021, Table 1).

    The density of the noise, f(ξ) = e^{kξ − e^ξ}/Γ(k), lies on the whole line and is skewed to the left: its left tail
    is that of an Exponential, and its right tail falls faster than any Exponential. Nazarovs et al. call the family a
    scaling one by their Corollary 1; with a mean and a scale to learn it is a location-scale family.

    Args:
        init_scale: where σ starts; see `Normal`.
        shape: the shape k.

    >>> LogGamma(shape=1.0).variance(torch.tensor(1.0))
    tensor(1.6449)
    """

    symmetric = False
    shape: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "shape", self.shape)

    def noise(self, like: Tensor, samples: int | None, generator: torch.Generator | None) -> Tensor:
        """Draw ξ = log G."""
        shape = like.shape if samples is None else (samples, *like.shape)
        with torch.no_grad():
            return standard_gamma(self.shape, shape, like, generator).log_()

    def log_noise(self, noise: Tensor) -> Tensor:
        """Return kξ − e^ξ − log Γ(k)."""
        return self.shape * noise - noise.exp() - math.lgamma(self.shape)

    def expected(self, term: Term, count: int) -> float:  # noqa: ARG002
        """Return E ξ^k, computed from the cumulants, which are ψ(k) and its derivatives."""
        k = term.order
        if term.kind == "log" or k != int(k) or k < 0:
            return math.inf
        shape = float(self.shape)
        moments = [1.0]
        for n in range(1, int(k) + 1):
            parts = (math.comb(n - 1, i) * polygamma(i, shape) * moments[n - 1 - i] for i in range(n))
            moments.append(sum(parts))
        return moments[-1]

    def noise_entropy(self, count: int) -> float:
        """Return log Γ(k) + k − kψ(k) for each coordinate."""
        return count * (math.lgamma(self.shape) + self.shape - self.shape * digamma(self.shape))
