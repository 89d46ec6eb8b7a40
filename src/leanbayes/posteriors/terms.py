"""What densities are made of, as data: powers and logarithms, and the means of these over noise."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

__all__ = ["CONSTANT", "Form", "Number", "Statistics", "Term", "log", "power"]

Number = Tensor | float


@dataclass(frozen=True)
class Term:
    """x^order or (log x)^order: the functions g of Nazarovs et al. 2021, Theorems 1 and 2.

    Attributes:
        kind: "power" or "log".
        order: the exponent.

    >>> power(2)(3.0), log(1)(1.0)
    (9.0, 0.0)
    """

    kind: Literal["power", "log"]
    order: float

    def __call__(self, x: Number) -> Number:
        """Return the value at x."""
        if self.kind == "log":
            x = x.log() if isinstance(x, Tensor) else math.log(x)
        return x if self.order == 1 else x**self.order

    def __str__(self) -> str:
        if self.order == 0:
            return "1"
        name = "log x" if self.kind == "log" else "x"
        if self.order == 1:
            return name
        return f"({name})^{self.order:g}" if self.kind == "log" else f"{name}^{self.order:g}"


def power(order: float) -> Term:
    """Return the term x^order."""
    return Term("power", order)


def log(order: int = 1) -> Term:
    """Return the term (log x)^order."""
    return Term("log", order)


CONSTANT = power(0)


@dataclass(frozen=True)
class Form:
    """How a variable x is made of noise: b = location + scale·ξ, and x = b or x = ±e^b.

    In Nazarovs et al. 2021 this is Theorem 1 without a location (w = θξ), Theorem 2 with one (w = μ + σξ), and
    Corollary 2 where x is exponential in b.

    Attributes:
        location: the location, or None where b = scale·ξ.
        scale: the scale.
        exponential: whether x = ±e^b.
        sign: the sign of x where x = ±e^b; None where x is positive.
    """

    location: Tensor | None
    scale: Tensor
    exponential: bool = False
    sign: Tensor | None = None

    def base(self, noise: Tensor) -> Tensor:
        """Return the b that ``noise`` stands for."""
        deviation = self.scale * noise
        return deviation if self.location is None else self.location + deviation

    def variable(self, base: Tensor) -> Tensor:
        """Return the x of a b."""
        if not self.exponential:
            return base
        return base.exp() if self.sign is None else self.sign * base.exp()


@dataclass(frozen=True)
class Statistics:
    """Means over many draws of noise.

    Attributes:
        terms: the mean of each term of ξ, one number for each coordinate.
        log_density: the mean of log f(ξ), summed over the coordinates.
    """

    terms: Mapping[Term, Number]
    log_density: Number
