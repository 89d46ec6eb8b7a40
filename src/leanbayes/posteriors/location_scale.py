"""What families of one scale share: w = μ + σ(ξ − E ξ) with σ = softplus(ρ)."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution

from leanbayes.errors import InputError
from leanbayes.posteriors.family import Family
from leanbayes.posteriors.initial import GaussianRho, InitialScale, RelativeScale, initial_rho
from leanbayes.posteriors.law import FamilyLaw
from leanbayes.posteriors.terms import Form, power

__all__ = ["LocationScale", "check_positive"]


@dataclass(frozen=True)
class LocationScale(Family):
    """w = μ + σ(ξ − E ξ): the model's own parameter is the mean (003, Theorem 2).

    A family of positive noise (``positive = True``) is shifted so that it can be a weight of either sign: its positive
    part is v = w − (μ − σ E ξ) = σξ, the excess over the lowest value that the weight can take, and v is the scaling
    family of 003 itself (Theorem 1). A prior on the positive numbers is a prior of v, and leaves the location a point
    estimate; a prior on the whole line is a prior of w. ``init_scale`` is as for `Normal`.
    """

    init_scale: InitialScale = 0.05

    def __post_init__(self) -> None:
        if isinstance(self.init_scale, GaussianRho | RelativeScale):
            return
        if not (isinstance(self.init_scale, int | float) and 0 < self.init_scale < math.inf):
            raise InputError(
                "init_scale must be a positive finite number, a GaussianRho or a RelativeScale, "
                f"got {self.init_scale!r}"
            )

    @property
    def centre(self) -> float:
        """E ξ, or 0 for symmetric noise, which may have no mean."""
        return 0.0 if self.symmetric else self.expected(power(1), 1)

    def initial(self, weights: Tensor, generator: torch.Generator | None) -> Tensor:
        """ρ as ``init_scale`` says."""
        return initial_rho(self.init_scale, weights, generator)

    def spread(self, rho: Tensor) -> Tensor:
        """σ = softplus(ρ)."""
        return F.softplus(rho, threshold=40)  # beyond 40, e^-ρ is below the last digit of float64

    def perturbation(self, spread: Tensor, noise: Tensor, mean: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """σ(ξ − E ξ)."""
        centre = self.centre
        return spread * (noise - centre) if centre else spread * noise

    def variance(self, spread: Tensor, mean: Tensor | None = None) -> Tensor:
        """σ² Var ξ."""
        second = self.expected(power(2), (spread if mean is None else mean).numel())
        if second == math.inf:
            raise InputError(
                f'{self} has no variance, so no moments can be taken of it; use propagate="sample" or "flipout"'
            )
        return spread.square() * (second - self.centre**2)

    def distribution(self, mean: Tensor, spread: Tensor) -> Distribution:
        """The law of w."""
        return FamilyLaw(self, mean, spread)

    def form(self, mean: Tensor, spread: Tensor, part: bool) -> Form:
        """w = (μ − σ E ξ) + σξ, or its positive part v = σξ."""
        if part:
            if not self.positive:
                raise self.no_part()
            return Form(None, spread)
        centre = self.centre
        return Form(mean - centre * spread if centre else mean, spread)


def check_positive(family: Family, name: str, value: float, above: float = 0.0) -> None:
    """A shape parameter must be a finite number above ``above``."""
    if not (isinstance(value, int | float) and above < value < math.inf):
        raise InputError(f"{type(family).__name__} needs a finite {name} above {above:g}, got {value!r}")
