"""The standard Wald posterior, w = μ + σ(ξ − 1), where ξ is inverse Gaussian with mean 1."""

import math
from collections.abc import Set
from dataclasses import dataclass

import torch
from torch import Tensor

from leanbayes._tracing import computed_once
from leanbayes.posteriors._noise import standard_normal
from leanbayes.posteriors._special import standard_gamma
from leanbayes.posteriors.location_scale import LocationScale, check_positive
from leanbayes.posteriors.terms import Statistics, Term, log, power

__all__ = ["Wald"]


@dataclass(frozen=True)
class Wald(LocationScale):
    """The weight is w = μ − σ + v with v = σξ and ξ ~ IG(1, λ) (Nazarovs et al. 2021, Table 1).

    So v is inverse Gaussian with mean σ and shape λσ. The density of the noise is f(ξ) = √(λ/2πξ³) e^{−λ(ξ−1)²/2ξ}.
    For M draws, (mean ξ, mean 1/ξ) has a known law (Tweedie 1957): mean ξ ~ IG(1, Mλ), and independently of it
    λ Σ(1/ξᵢ − 1/ξ̄) ~ χ²_{M−1}.

    Args:
        init_scale: where σ starts; see `Normal`.
        shape: the shape λ.

    >>> Wald(shape=4.0).variance(torch.tensor(1.0))
    tensor(0.2500)
    """

    symmetric = False
    positive = True
    shape: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "shape", self.shape)

    def noise(self, like: Tensor, samples: int | None, generator: torch.Generator | None) -> Tensor:
        """Draw ξ ~ IG(1, λ)."""
        return _inverse_gaussian(self.shape, like.shape if samples is None else (samples, *like.shape), like, generator)

    def log_noise(self, noise: Tensor) -> Tensor:
        """Return ½ log(λ/2π) − 1.5 log ξ − ½λ(ξ − 2 + 1/ξ)."""
        half = 0.5 * self.shape
        return 0.5 * math.log(half / math.pi) - 1.5 * noise.log() - half * (noise - 2 + 1 / noise)

    def expected(self, term: Term, count: int) -> float:  # noqa: ARG002
        """Return E ξ^p = √(2λ/π) e^λ K_{p−½}(λ).

        The Bessel function K comes from its integral, and the expectations of logarithms are derivatives in p.
        """
        p, times = (term.order, 0) if term.kind == "power" else (0.0, int(term.order))
        return 1.0 if (p, times) in ((0, 0), (1, 0)) else _expectation(float(self.shape), p, times)

    def noise_entropy(self, count: int) -> float:
        """Return −E log f(ξ), with E ξ = 1 and E 1/ξ = 1 + 1/λ."""
        return count * (0.5 - 0.5 * math.log(0.5 * self.shape / math.pi) + 1.5 * self.expected(log(), 1))

    def sampled(
        self, wanted: Set[Term], samples: int, like: Tensor, generator: torch.Generator | None
    ) -> Statistics | None:
        """Draw the means of ξ and 1/ξ from their law.

        The mean of log ξ only adds a constant to the KL, so it is put at its expectation.
        """
        if not wanted <= {power(1), power(-1), log()}:
            return None
        with torch.no_grad():
            mean = _inverse_gaussian(samples * self.shape, like.shape, like, generator)
            inverse = 1 / mean
            if samples > 1:
                chi_square = standard_gamma((samples - 1) / 2, like.shape, like, generator)
                inverse = inverse + chi_square * (2 / (samples * self.shape))
            logarithm, half = self.expected(log(), 1), 0.5 * self.shape
            constant = 0.5 * math.log(half / math.pi) - 1.5 * logarithm + 2 * half
            log_density = constant * like.numel() - half * (mean + inverse).sum()
        return Statistics({power(1): mean, power(-1): inverse, log(): logarithm}, log_density)


def _inverse_gaussian(
    shape: float, size: tuple[int, ...] | torch.Size, like: Tensor, generator: torch.Generator | None
) -> Tensor:
    """Draw IG(1, λ) as Michael, Schucany and Haas (1976): the roots of a quadratic in z² have the product 1."""
    with torch.no_grad():
        y = standard_normal(size, like, generator).square_() / shape
        small = 2 / (2 + y + (y * (y + 4)).sqrt())
        other = torch.rand(size, dtype=like.dtype, device=like.device, generator=generator) * (1 + small) > 1
        return torch.where(other, 1 / small, small)


@computed_once
def _expectation(shape: float, p: float, times: int) -> float:
    """E[ξ^p (log ξ)^times] of IG(1, λ) = √(2λ/π) ∫ e^{−λ(cosh t − 1)} (d/dp)^times cosh((p−½)t) dt over t > 0."""
    t = torch.linspace(0, math.acosh(1 + 800 / shape), 20_001, dtype=torch.float64)  # e^−800 is 0
    nu = (p - 0.5) * t
    body = torch.exp(-2 * shape * torch.sinh(t / 2).square() + nu.abs())  # cosh t − 1 without cancellation
    decay = torch.exp(-2 * nu.abs())
    wave = 0.5 * (1 + decay) if times % 2 == 0 else 0.5 * nu.sign() * (1 - decay)
    return math.sqrt(2 * shape / math.pi) * torch.trapezoid(body * wave * t**times, t).item()
