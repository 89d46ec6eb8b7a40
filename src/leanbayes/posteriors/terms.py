"""What a density is made of, as data: powers and logarithms of its argument, and means of the same of noise."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

__all__ = ["CONSTANT", "Form", "Number", "Statistics", "Term", "log", "power"]

Number = Tensor | float


@dataclass(frozen=True)
class Term:
    """x^order or (log x)^order: the functions g of 003's Theorems 1 and 2.

    >>> power(2)(3.0), log(1)(1.0)
    (9.0, 0.0)
    """

    kind: Literal["power", "log"]
    order: float

    def __call__(self, x: Number) -> Number:
        """Its value at x."""
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
    """x^order."""
    return Term("power", order)


def log(order: int = 1) -> Term:
    """(log x)^order."""
    return Term("log", order)


CONSTANT = power(0)


@dataclass(frozen=True)
class Form:
    """How a variable is made of noise: b = location + scale·ξ, and x = b, or x = ±e^b.

    Without a location it is 003's Theorem 1 (w = θξ), with one Theorem 2 (w = μ + σξ); ``exponential`` is its
    Corollary 2. ``sign`` is that of x where x = ±e^b.
    """

    location: Tensor | None
    scale: Tensor
    exponential: bool = False
    sign: Tensor | None = None

    def base(self, noise: Tensor) -> Tensor:
        """The b that ``noise`` stands for."""
        deviation = self.scale * noise
        return deviation if self.location is None else self.location + deviation

    def variable(self, base: Tensor) -> Tensor:
        """The x of a b."""
        if not self.exponential:
            return base
        return base.exp() if self.sign is None else self.sign * base.exp()


@dataclass(frozen=True)
class Statistics:
    """Means over draws: of each term of ξ (one number a coordinate), and of log f(ξ), summed over the coordinates."""

    terms: Mapping[Term, Number]
    log_density: Number
