"""The base class of families with one scale, w = μ + σ(ξ − E ξ) with σ = softplus(ρ)."""

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
    """The weight is w = μ + σ(ξ − E ξ), so the parameter of the model stays the mean (Nazarovs et al. 2021, Theorem 2).

    A family of positive noise (``positive = True``) is shifted so that its weights can have either sign. The positive
    part of such a weight is v = w − (μ − σ E ξ) = σξ, the excess over the lowest value that the weight can take, and v
    is what Nazarovs et al. call a scaling family (Theorem 1). A prior on the positive numbers is a prior of v, and
    leaves the location a point estimate. A prior on the whole line is a prior of w.

    A subclass gives `noise`, `log_noise`, `expected` and `noise_entropy`.

    Args:
        init_scale: where σ starts; see `Normal`.
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
        """The mean E ξ, or 0 for symmetric noise, which may have no mean."""
        return 0.0 if self.symmetric else self.expected(power(1), 1)

    def initial(self, weights: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the ρ that ``init_scale`` describes."""
        return initial_rho(self.init_scale, weights, generator)

    def spread(self, rho: Tensor) -> Tensor:
        """Return σ = softplus(ρ)."""
        return F.softplus(rho, threshold=40)  # beyond 40, e^-ρ is below the last digit of float64

    def perturbation(self, spread: Tensor, noise: Tensor, mean: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Return σ(ξ − E ξ)."""
        centre = self.centre
        return spread * (noise - centre) if centre else spread * noise

    def variance(self, spread: Tensor, mean: Tensor | None = None) -> Tensor:
        """Return σ² Var ξ."""
        second = self.expected(power(2), (spread if mean is None else mean).numel())
        if second == math.inf:
            raise InputError(
                f'{self} has no variance, so no moments can be taken of it; use propagate="sample" or "flipout"'
            )
        return spread.square() * (second - self.centre**2)

    def distribution(self, mean: Tensor, spread: Tensor) -> Distribution:
        """Return the law of w."""
        return FamilyLaw(self, mean, spread)

    def form(self, mean: Tensor, spread: Tensor, part: bool) -> Form:
        """Return the form w = (μ − σ E ξ) + σξ, or v = σξ for the positive part."""
        if part:
            if not self.positive:
                raise self.no_part()
            return Form(None, spread)
        centre = self.centre
        return Form(mean - centre * spread if centre else mean, spread)


def check_positive(family: Family, name: str, value: float, above: float = 0.0) -> None:
    """Raise `InputError` unless a shape parameter is a finite number above ``above``."""
    if not (isinstance(value, int | float) and above < value < math.inf):
        raise InputError(f"{type(family).__name__} needs a finite {name} above {above:g}, got {value!r}")
