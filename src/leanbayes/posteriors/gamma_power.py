"""The base class of positive families whose noise is a power of Gamma noise, ξ = (bG)^{1/c} with G ~ Gamma(k, 1)."""

import math
from abc import abstractmethod
from collections.abc import Set
from dataclasses import dataclass

import torch
from torch import Tensor

from leanbayes.errors import InputError
from leanbayes.posteriors._special import digamma, exponential, polygamma, standard_gamma
from leanbayes.posteriors.location_scale import LocationScale
from leanbayes.posteriors.terms import Statistics, Term, log, power

__all__ = ["GammaPower", "gamma_expectation"]


@dataclass(frozen=True)
class GammaPower(LocationScale):
    """The base class for w = μ + σ(ξ − E ξ) with ξ = (bG)^{1/c}; a subclass gives (k, b, c).

    `LocationScale` explains how positive noise becomes a weight. The density of the noise is
    log f(ξ) = (ck − 1) log ξ − ξ^c/b + log|c| − k log b − log Γ(k). The sum of M values of ξ^c is b·Gamma(Mk), so for a
    prior with that power and a logarithm the statistics of M draws are drawn in one step, whatever M is.
    """

    symmetric = False
    positive = True

    @property
    @abstractmethod
    def gamma(self) -> tuple[float, float, float]:
        """The parameters (k, b, c) of the noise."""

    def noise(self, like: Tensor, samples: int | None, generator: torch.Generator | None) -> Tensor:
        """Draw ξ = (bG)^{1/c}."""
        k, b, c = self.gamma
        shape = like.shape if samples is None else (samples, *like.shape)
        with torch.no_grad():
            g = exponential(shape, like, generator) if k == 1 else standard_gamma(k, shape, like, generator)
            return (b * g).pow_(1 / c) if (b, c) != (1, 1) else g

    def log_noise(self, noise: Tensor) -> Tensor:
        """Return log f(ξ)."""
        k, b, c = self.gamma
        return (c * k - 1) * noise.log() - noise**c / b + self._log_constant()

    def expected(self, term: Term, count: int) -> float:  # noqa: ARG002
        """Return E ξ^p = b^{p/c} Γ(k + p/c)/Γ(k), or E log ξ and E log² ξ by digamma functions."""
        k, b, c = self.gamma
        return gamma_expectation(term, k, b, c)

    def noise_entropy(self, count: int) -> float:
        """Return −E log f(ξ), where the mean of ξ^c/b is k."""
        k, _, c = self.gamma
        return count * (k - (c * k - 1) * self.expected(log(), 1) - self._log_constant())

    def sampled(
        self, wanted: Set[Term], samples: int, like: Tensor, generator: torch.Generator | None
    ) -> Statistics | None:
        """Draw mean ξ^c = bS/M with S ~ Gamma(Mk), and put mean log ξ at its expectation given S.

        log ξ only adds a constant to the KL, so the gradient has the law of M draws and the value a smaller variance.
        The shares of S are Dirichlet and independent of it, so E[log G | S] = log S + ψ(k) − ψ(Mk).
        """
        k, b, c = self.gamma
        if not wanted <= {power(c), log()}:
            return None
        with torch.no_grad():
            total = standard_gamma(samples * k, like.shape, like, generator)
            logarithm = (total.log() + (math.log(b) + digamma(k) - digamma(samples * k))) / c
            mean = total * (b / samples)
            log_density = ((c * k - 1) * logarithm - mean / b).sum() + self._log_constant() * like.numel()
        return Statistics({power(c): mean, log(): logarithm}, log_density)

    def _log_constant(self) -> float:
        k, b, c = self.gamma
        return math.log(abs(c)) - k * math.log(b) - math.lgamma(k)


def gamma_expectation(term: Term, k: float, b: float, c: float) -> float:
    """Return E[term] of (bG)^{1/c}, which is infinite where it diverges.

    >>> gamma_expectation(power(2), 3.0, 1.0, 1.0), gamma_expectation(power(-1), 1.0, 1.0, 1.0)
    (12.0, inf)
    """
    if term.kind == "power":
        p = term.order / c
        if k + p <= 0:
            return math.inf
        if max(k, k + p) < 100:
            return float(b**p) * math.gamma(k + p) / math.gamma(k)
        return math.exp(p * math.log(b) + math.lgamma(k + p) - math.lgamma(k))
    mean = math.log(b) + digamma(k)
    if term.order == 1:
        return mean / c
    if term.order == 2:
        return (mean**2 + polygamma(1, k)) / c**2
    raise InputError(f"the expectation of {term} is not known")
