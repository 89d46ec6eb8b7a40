"""The Horseshoe posterior: w = μ + σλz with z ~ N(0, 1) and a half-Cauchy λ."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leanbayes.posteriors.location_scale import LocationScale
from leanbayes.posteriors.noise import standard_normal
from leanbayes.posteriors.special import log_scaled_exponential_integral
from leanbayes.posteriors.terms import Term

__all__ = ["Horseshoe"]

_ENTROPY = 2.109871836061374  # −E log f(ξ), by quadrature in 30 digits


@dataclass(frozen=True)
class Horseshoe(LocationScale):
    """w ~ Horseshoe(μ, σ), f(ξ) = (2π³)^−½ e^{ξ²/2} E₁(ξ²/2) (Carvalho et al. 2010; 003, Table 1, location-scale).

    A pole at 0 and tails of ξ^−2: it has neither mean nor variance, so ``local`` and ``moments`` cannot carry it, and
    against a Normal, Laplace or Logistic prior its KL is infinite, although 003's Table 1 pairs them.

    >>> Horseshoe().log_noise(torch.tensor(1.0))
    tensor(-2.1439)
    """

    def noise(self, like: Tensor, samples: int | None, generator: torch.Generator | None) -> Tensor:
        """ξ = z·z'/z'', a Normal times a Cauchy."""
        shape = like.shape if samples is None else (samples, *like.shape)
        with torch.no_grad():
            top = standard_normal(shape, like, generator).mul_(standard_normal(shape, like, generator))
            below = standard_normal(shape, like, generator)
            tiny = torch.finfo(like.dtype).eps ** 2
            return top.div_(below.abs_().clamp_min_(tiny))

    def log_noise(self, noise: Tensor) -> Tensor:
        """log(e^y E₁(y)) − ½ log 2π³ with y = ξ²/2."""
        return log_scaled_exponential_integral(0.5 * noise.square()) - 0.5 * math.log(2 * math.pi**3)

    def expected(self, term: Term, count: int) -> float:  # noqa: ARG002
        """No power has an expectation."""
        return 1.0 if term.kind == "power" and term.order == 0 else math.inf

    def has_moment(self, order: float) -> bool:
        """Only below 1."""
        return order < 1

    def noise_entropy(self, count: int) -> float:
        """A number without a short form, a coordinate."""
        return count * _ENTROPY
