"""The horseshoe posterior, w = μ + σλz with z ~ N(0, 1) and a half-Cauchy λ."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leanbayes.posteriors._noise import standard_normal
from leanbayes.posteriors._special import log_scaled_exponential_integral
from leanbayes.posteriors.location_scale import LocationScale
from leanbayes.posteriors.terms import Term

__all__ = ["Horseshoe"]

_ENTROPY = 2.109871836061374  # −E log f(ξ), by quadrature in 30 digits


@dataclass(frozen=True)
class Horseshoe(LocationScale):
    """The weight follows a horseshoe law around μ (Carvalho et al. 2010; Nazarovs et al. 2021, Table 1).

    The density of the noise is f(ξ) = (2π³)^−½ e^{ξ²/2} E₁(ξ²/2). It has a pole at 0, and its tails fall as ξ^−2, so
    neither a mean nor a variance exists. The propagations "local" and "moments" therefore refuse this family. Its KL to
    a Normal, Laplace or Logistic prior is infinite, although Table 1 of Nazarovs et al. pairs them.

    Args:
        init_scale: where σ starts; see `Normal`.

    >>> Horseshoe().log_noise(torch.tensor(1.0))
    tensor(-2.1439)
    """

    def noise(self, like: Tensor, samples: int | None, generator: torch.Generator | None) -> Tensor:
        """Draw ξ = z·z'/|z''|, a Normal times a half-Cauchy."""
        shape = like.shape if samples is None else (samples, *like.shape)
        with torch.no_grad():
            top = standard_normal(shape, like, generator).mul_(standard_normal(shape, like, generator))
            below = standard_normal(shape, like, generator)
            tiny = torch.finfo(like.dtype).eps ** 2
            return top.div_(below.abs_().clamp_min_(tiny))

    def log_noise(self, noise: Tensor) -> Tensor:
        """Return log(e^y E₁(y)) − ½ log 2π³ with y = ξ²/2."""
        return log_scaled_exponential_integral(0.5 * noise.square()) - 0.5 * math.log(2 * math.pi**3)

    def expected(self, term: Term, count: int) -> float:  # noqa: ARG002
        """Return infinity, because no power of ξ has an expectation."""
        return 1.0 if term.kind == "power" and term.order == 0 else math.inf

    def has_moment(self, order: float) -> bool:
        """Moments exist for orders below 1."""
        return order < 1

    def noise_entropy(self, count: int) -> float:
        """Return a constant for each coordinate that has no short form."""
        return count * _ENTROPY
