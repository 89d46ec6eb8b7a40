"""The Normal posterior, w = μ + softplus(ρ)·ξ with ξ ~ N(0, 1)."""

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.distributions import Normal as TorchNormal

from leanbayes._ops import mirrored
from leanbayes._ops.normal import seed_of
from leanbayes._ops.scales import squared_softplus
from leanbayes.errors import UnknownName
from leanbayes.posteriors._noise import (
    mirrored_normal,
    mirrored_normals,
    normal_and_sums,
    shifted_normal,
    standard_normal,
)
from leanbayes.posteriors._special import normal_and_gamma
from leanbayes.posteriors.location_scale import LocationScale
from leanbayes.posteriors.terms import Statistics, Term, power

__all__ = ["Normal", "log_standard_normal", "normal_moment", "normal_statistics"]


@dataclass(frozen=True)
class Normal(LocationScale):
    """The weight is w ~ N(μ, σ²) with σ = softplus(ρ) = log(1 + e^ρ).

    With ``per="filter"`` all weights of one output of a layer share one σ, as in VDP++: ρ has length 1 along all axes
    but that of the outputs, and the variance of a convolution is a box sum. Then whole tensors must be random, and a
    `RelativeScale` is a share of the mean |w| of the filter. In a transposed convolution with groups, the filters at
    the same position of each group share one σ.

    Args:
        init_scale: where σ starts: a constant, a `GaussianRho` (ρ ~ N(m, s²)) or a `RelativeScale` (a share of |w|).
        per: "weight" for one σ for each weight, or "filter" for one σ for each output.

    >>> Normal(init_scale=0.05).spread(Normal(init_scale=0.05).initial(torch.zeros(2), None))
    tensor([0.0500, 0.0500])
    """

    per: Literal["weight", "filter"] = "weight"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.per not in ("weight", "filter"):
            raise UnknownName.of("per", self.per, ["weight", "filter"])

    def initial(self, weights: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the ρ that ``init_scale`` describes; the first axis is that of the outputs."""
        if self.per == "filter" and weights.dim() > 1:
            weights = weights.detach().abs().mean(tuple(range(1, weights.dim())), keepdim=True)
        return super().initial(weights, generator)

    def noise(self, like: Tensor, samples: int | None, generator: torch.Generator | None) -> Tensor:
        """Draw ξ ~ N(0, 1)."""
        shape = like.shape if samples is None else (samples, *like.shape)
        return standard_normal(shape, like, generator)

    def perturbation(self, spread: Tensor, noise: Tensor, mean: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Return σξ."""
        return spread * noise

    def sample(self, mean: Tensor, spread: Tensor, noise: Tensor, out: Tensor | None = None) -> Tensor:
        """Return μ + σξ, computed in one sweep over memory."""
        return torch.addcmul(mean, spread, noise, out=out)

    def draw(
        self, mean: Tensor, spread: Tensor, generator: torch.Generator | None, out: Tensor | None = None
    ) -> Tensor:
        """Return μ + σξ, on the CPU without storing ξ."""
        if spread.shape != mean.shape:  # one σ for several weights, each of which has its own ξ
            return self.sample(mean, spread, self.noise(mean, None, generator), out)
        return shifted_normal(mean, spread, generator, out)

    def draw_and_sums(
        self, mean: Tensor, rho: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor] | None:
        """Return μ + σξ with the sums of which an exact KL is made."""
        return normal_and_sums(mean, rho, generator) if rho.shape == mean.shape and self._by_softplus else None

    def pair(self, mean: Tensor, rho: Tensor, noise: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return μ + σξ and μ − σξ, in one sweep over memory where a kernel fits."""
        fits = rho.shape == mean.shape == noise.shape and self._by_softplus
        return mirrored_normal(mean, rho, noise) if fits else None

    def pairs(self, means: Sequence[Tensor], rhos: Sequence[Tensor], noise: Tensor) -> Sequence[Tensor] | None:
        """Return what `pair` does for many tensors at once."""
        return mirrored_normals(means, rhos, noise) if self._by_softplus else None

    def seed(self, mean: Tensor, rho: Tensor, generator: torch.Generator | None) -> int | None:
        """Draw a seed where the kernels of a mirrored pair fit."""
        ours = self._by_softplus and type(self).noise is Normal.noise
        if not ours or rho.shape != mean.shape or not mirrored.kernel_fits(mean, rho):
            return None
        return seed_of(generator)

    def variance(self, spread: Tensor, mean: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Return σ²."""
        return spread.square()

    def raw_variance(self, rho: Tensor) -> Tensor | None:
        """Return softplus(ρ)², where a kernel fits."""
        return squared_softplus(rho) if self._by_softplus else None

    @property
    def _by_softplus(self) -> bool:
        """Whether σ = softplus(ρ), which the sweeps over memory take for granted; a subclass may have another σ."""
        return type(self).spread is Normal.spread

    def distribution(self, mean: Tensor, spread: Tensor) -> Distribution:
        """Return N(μ, σ²)."""
        return TorchNormal(mean, spread, validate_args=False)

    def log_noise(self, noise: Tensor) -> Tensor:
        """Return −½ξ² − ½ log 2π."""
        return log_standard_normal(noise)

    def expected(self, term: Term, count: int) -> float:  # noqa: ARG002
        """Return E ξ^k = (k−1)!! for even k, and 0 for odd k."""
        return normal_moment(term)

    def noise_entropy(self, count: int) -> float:
        """Return ½ log 2πe for each coordinate."""
        return count * 0.5 * math.log(2 * math.pi * math.e)

    def sampled(
        self, wanted: Set[Term], samples: int, like: Tensor, generator: torch.Generator | None
    ) -> Statistics | None:
        """Draw (ξ̄, mean ξ²) = (z/√M, z²/M + χ²_{M−1}/M), which is their law by Cochran's theorem."""
        return normal_statistics(wanted, samples, like, generator)


def log_standard_normal(noise: Tensor) -> Tensor:
    """Return log φ(ξ)."""
    return -0.5 * noise.square() - 0.5 * math.log(2 * math.pi)


def normal_moment(term: Term) -> float:
    """Return E ξ^k of N(0, 1).

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
    """Draw the means of ξ and ξ² over ``samples`` draws of N(0, 1) from their joint law."""
    if not wanted <= {power(1), power(2)}:
        return None
    with torch.no_grad():
        law = ((samples - 1) / 2, 1 / math.sqrt(samples), 1 / samples, 2 / samples)
        first, second = normal_and_gamma(law, like, generator)
        log_density = -0.5 * second.sum() - 0.5 * math.log(2 * math.pi) * like.numel()
    return Statistics({power(1): first, power(2): second}, log_density)
