"""The generalised error posterior, w = μ + σξ, where ξ has a density proportional to exp(−½|ξ|^{2/c})."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leanbayes.posteriors._special import standard_gamma
from leanbayes.posteriors.gamma_power import gamma_expectation
from leanbayes.posteriors.location_scale import LocationScale, check_positive
from leanbayes.posteriors.terms import Term

__all__ = ["GeneralisedError"]


@dataclass(frozen=True)
class GeneralisedError(LocationScale):
    """The weight follows the generalised error law, also called exponential power or generalised normal.

    The density of the noise is f(ξ) = exp(−½|ξ|^{2/c})/(2^{c/2+1} Γ(1 + c/2)). The shape c = 1 gives a Normal, c = 2 a
    Laplace of scale 2, and c → 0 a uniform law. Nazarovs et al. 2021 (Table 1) fix the location and list the family as
    a scaling one; here the mean is learned as well, so it is a location-scale family.

    Args:
        init_scale: where σ starts; see `Normal`.
        shape: the shape c.

    >>> GeneralisedError(shape=1.0).variance(torch.tensor(3.0))
    tensor(9.)
    """

    shape: float = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "shape", self.shape)

    def noise(self, like: Tensor, samples: int | None, generator: torch.Generator | None) -> Tensor:
        """Draw ξ = ±(2G)^{c/2} with G ~ Gamma(c/2)."""
        shape = like.shape if samples is None else (samples, *like.shape)
        with torch.no_grad():
            size = (2 * standard_gamma(self.shape / 2, shape, like, generator)).pow_(self.shape / 2)
            bits = torch.randint(0, 2, shape, device=like.device, generator=generator)
            return torch.where(bits == 0, size, -size)

    def log_noise(self, noise: Tensor) -> Tensor:
        """Return −½|ξ|^{2/c} − log(2^{c/2+1} Γ(1 + c/2))."""
        return -0.5 * noise.abs() ** (2 / self.shape) - self._log_constant()

    def expected(self, term: Term, count: int) -> float:  # noqa: ARG002
        """Return E ξ^k = 2^{ck/2} Γ(c(k+1)/2)/Γ(c/2) for even k, and 0 for odd k."""
        k = term.order
        if term.kind == "log" or k != int(k) or k < 0:
            return math.inf
        return 0.0 if k % 2 else gamma_expectation(term, self.shape / 2, 2.0, 2 / self.shape)

    def noise_entropy(self, count: int) -> float:
        """Return c/2 plus the constant for each coordinate, because ½|ξ|^{2/c} ~ Gamma(c/2)."""
        return count * (0.5 * self.shape + self._log_constant())

    def _log_constant(self) -> float:
        return (self.shape / 2 + 1) * math.log(2) + math.lgamma(1 + self.shape / 2)
