"""The generalised Error posterior: w = μ + σξ with density ∝ exp(−½|ξ|^{2/c}) of ξ."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leanbayes.posteriors.gamma_power import gamma_expectation
from leanbayes.posteriors.location_scale import LocationScale, check_positive
from leanbayes.posteriors.special import standard_gamma
from leanbayes.posteriors.terms import Term

__all__ = ["GeneralisedError"]


@dataclass(frozen=True)
class GeneralisedError(LocationScale):
    """w ~ Error(μ, σ, c), also called exponential power or generalised normal (003, Table 1).

    f(ξ) = exp(−½|ξ|^{2/c})/(2^{c/2+1} Γ(1 + c/2)): c = 1 is Normal, c = 2 Laplace of scale 2, c → 0 uniform.
    003 has its location fixed and lists it as scaling; here the mean is learned, and it is location-scale.

    >>> GeneralisedError(shape=1.0).variance(torch.tensor(3.0))
    tensor(9.)
    """

    shape: float = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "shape", self.shape)

    def noise(self, like: Tensor, samples: int | None, generator: torch.Generator | None) -> Tensor:
        """ξ = ±(2G)^{c/2}, G ~ Gamma(c/2)."""
        shape = like.shape if samples is None else (samples, *like.shape)
        with torch.no_grad():
            size = (2 * standard_gamma(self.shape / 2, shape, like, generator)).pow_(self.shape / 2)
            bits = torch.randint(0, 2, shape, device=like.device, generator=generator)
            return torch.where(bits == 0, size, -size)

    def log_noise(self, noise: Tensor) -> Tensor:
        """−½|ξ|^{2/c} − log(2^{c/2+1} Γ(1 + c/2))."""
        return -0.5 * noise.abs() ** (2 / self.shape) - self._log_constant()

    def expected(self, term: Term, count: int) -> float:  # noqa: ARG002
        """E ξ^k = 2^{ck/2} Γ(c(k+1)/2)/Γ(c/2) for even k."""
        k = term.order
        if term.kind == "log" or k != int(k) or k < 0:
            return math.inf
        return 0.0 if k % 2 else gamma_expectation(term, self.shape / 2, 2.0, 2 / self.shape)

    def noise_entropy(self, count: int) -> float:
        """c/2 and the constant, a coordinate: ½|ξ|^{2/c} ~ Gamma(c/2)."""
        return count * (0.5 * self.shape + self._log_constant())

    def _log_constant(self) -> float:
        return (self.shape / 2 + 1) * math.log(2) + math.lgamma(1 + self.shape / 2)
