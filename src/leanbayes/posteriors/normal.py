"""The Normal posterior: w = μ + softplus(ρ)·ξ, ξ ~ N(0, 1)."""

import math
from collections.abc import Set
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.distributions import Normal as TorchNormal

from leanbayes.errors import UnknownName
from leanbayes.posteriors.location_scale import LocationScale
from leanbayes.posteriors.noise import normal_and_sums, shifted_normal, standard_normal
from leanbayes.posteriors.special import normal_and_gamma
from leanbayes.posteriors.terms import Statistics, Term, power

__all__ = ["Normal", "log_standard_normal", "normal_moment", "normal_statistics"]


@dataclass(frozen=True)
class Normal(LocationScale):
    """w ~ N(μ, σ²) with σ = softplus(ρ) = log(1 + e^ρ) (001, Algorithm 1, line 9).

    ``init_scale`` is a constant σ, a `GaussianRho` (the papers' ρ ~ N(m, s)) or a `RelativeScale` (a share of |w|).
    ``per="filter"`` keeps one σ for each output of a layer (002): ρ has length 1 along all axes but that of the
    outputs, and the variance of a convolution is a box sum. It needs whole tensors; a `RelativeScale` is then a share
    of the filter's mean |w|, and filters at one place in each group of a transposed convolution share theirs.

    >>> Normal(init_scale=0.05).spread(Normal(init_scale=0.05).initial(torch.zeros(2), None))
    tensor([0.0500, 0.0500])
    """

    per: Literal["weight", "filter"] = "weight"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.per not in ("weight", "filter"):
            raise UnknownName.of("per", self.per, ["weight", "filter"])

    def initial(self, weights: Tensor, generator: torch.Generator | None) -> Tensor:
        """ρ as ``init_scale`` says; the first axis is taken to be that of the outputs."""
        if self.per == "filter" and weights.dim() > 1:
            weights = weights.detach().abs().mean(tuple(range(1, weights.dim())), keepdim=True)
        return super().initial(weights, generator)

    def noise(self, like: Tensor, samples: int | None, generator: torch.Generator | None) -> Tensor:
        """ξ ~ N(0, 1)."""
        shape = like.shape if samples is None else (samples, *like.shape)
        return standard_normal(shape, like, generator)

    def perturbation(self, spread: Tensor, noise: Tensor, mean: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """σξ."""
        return spread * noise

    def sample(self, mean: Tensor, spread: Tensor, noise: Tensor, out: Tensor | None = None) -> Tensor:
        """μ + σξ in one sweep."""
        return torch.addcmul(mean, spread, noise, out=out)

    def draw(
        self, mean: Tensor, spread: Tensor, generator: torch.Generator | None, out: Tensor | None = None
    ) -> Tensor:
        """μ + σξ, on the CPU without storing ξ."""
        if spread.shape != mean.shape:  # one σ for several weights, each of which has its own ξ
            return self.sample(mean, spread, self.noise(mean, None, generator), out)
        return shifted_normal(mean, spread, generator, out)

    def draw_and_sums(
        self, mean: Tensor, rho: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor] | None:
        """μ + σξ with the sums of which an exact KL is made."""
        return normal_and_sums(mean, rho, generator) if rho.shape == mean.shape else None

    def variance(self, spread: Tensor, mean: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """σ²."""
        return spread.square()

    def distribution(self, mean: Tensor, spread: Tensor) -> Distribution:
        """N(μ, σ²)."""
        return TorchNormal(mean, spread, validate_args=False)

    def log_noise(self, noise: Tensor) -> Tensor:
        """−½ξ² − ½ log 2π."""
        return log_standard_normal(noise)

    def expected(self, term: Term, count: int) -> float:  # noqa: ARG002
        """E ξ^k = (k−1)!! for even k."""
        return normal_moment(term)

    def noise_entropy(self, count: int) -> float:
        """½ log 2πe a coordinate."""
        return count * 0.5 * math.log(2 * math.pi * math.e)

    def sampled(
        self, wanted: Set[Term], samples: int, like: Tensor, generator: torch.Generator | None
    ) -> Statistics | None:
        """(ξ̄, mean ξ²) = (z/√M, z²/M + χ²_{M−1}/M), by Cochran's theorem."""
        return normal_statistics(wanted, samples, like, generator)


def log_standard_normal(noise: Tensor) -> Tensor:
    """log φ(ξ)."""
    return -0.5 * noise.square() - 0.5 * math.log(2 * math.pi)


def normal_moment(term: Term) -> float:
    """E ξ^k of N(0, 1).

    >>> [normal_moment(power(k)) for k in range(5)]
    [1.0, 0.0, 1.0, 0.0, 3.0]
    """
    k = term.order
    if term.kind == "log" or k != int(k) or k < 0:
        return math.inf
    return 0.0 if k % 2 else math.prod(range(1, int(k), 2), start=1.0)


def normal_statistics(
    wanted: Set[Term], samples: int, like: Tensor, generator: torch.Generator | None
) -> Statistics | None:
    """Means of ξ and ξ² over ``samples`` draws of N(0, 1), from their joint law."""
    if not wanted <= {power(1), power(2)}:
        return None
    with torch.no_grad():
        law = ((samples - 1) / 2, 1 / math.sqrt(samples), 1 / samples, 2 / samples)
        found = normal_and_gamma(law, like, generator)
        log_density = -0.5 * found[1].sum() - 0.5 * math.log(2 * math.pi) * like.numel()
    return Statistics({power(1): found[0], power(2): found[1]}, log_density)
