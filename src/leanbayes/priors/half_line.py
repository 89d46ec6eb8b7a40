"""Prior distributions on the positive numbers that torch lacks."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Weibull, constraints

__all__ = ["InverseGaussianLaw", "rayleigh", "wald"]


class InverseGaussianLaw(Distribution):
    """The inverse Gaussian distribution, p(v) = √(λ/2πv³) e^{−λ(v−m)²/2m²v} for v > 0.

    Args:
        loc: the mean m.
        concentration: the shape λ.
        validate_args: whether to check the arguments, as for any torch distribution.

    >>> InverseGaussianLaw(1.0, 1.0).log_prob(torch.tensor(1.0))
    tensor(-0.9189)
    """

    arg_constraints: dict[str, Any] = {"loc": constraints.positive, "concentration": constraints.positive}  # noqa: RUF012
    support = constraints.positive

    def __init__(self, loc: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.loc, self.concentration = torch.broadcast_tensors(torch.as_tensor(loc), torch.as_tensor(concentration))
        super().__init__(self.loc.shape, validate_args=validate_args)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return log p(v)."""
        distance: Tensor = self.concentration * (value / self.loc - 1).square() / (2 * value)
        constant: Tensor = 0.5 * (self.concentration.log() - math.log(2 * math.pi))
        return constant - 1.5 * value.log() - distance


def wald(shape: Any) -> InverseGaussianLaw:
    """Build the standard Wald distribution, an inverse Gaussian of mean 1.

    >>> wald(2.0).concentration
    tensor(2.)
    """
    return InverseGaussianLaw(1.0, shape)


def rayleigh(scale: Any) -> Weibull:
    """Build the Rayleigh distribution, which torch knows as a Weibull of shape 2 and a scale √2 times as large.

    >>> rayleigh(1.0).log_prob(torch.tensor(1.0))
    tensor(-0.5000)
    """
    return Weibull(torch.as_tensor(scale) * math.sqrt(2), torch.as_tensor(2.0))
