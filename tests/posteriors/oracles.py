"""Laws of noise from scipy, and expectations under them by quadrature."""

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from scipy import special


class Noise(Protocol):
    """What a test needs of a scipy distribution."""

    def logpdf(self, x: Any) -> Any: ...

    def cdf(self, x: Any) -> Any: ...


class HorseshoeNoise:
    """f(x) = (2π³)^−½ e^y E₁(y), y = x²/2."""

    def logpdf(self, x: Any) -> Any:
        y = np.asarray(x, dtype=float) ** 2 / 2
        scaled = np.where(y < 500, np.exp(np.minimum(y, 500)) * special.exp1(np.minimum(y, 500)), asymptotic(y))
        return np.log(scaled) - 0.5 * np.log(2 * np.pi**3)

    @cached_property
    def grid(self) -> tuple[np.ndarray, np.ndarray]:
        t = np.linspace(-60, 60, 200_001)
        mass = np.exp(self.logpdf(np.exp(t)) + t)
        cumulative = np.concatenate([[0], np.cumsum((mass[1:] + mass[:-1]) / 2)]) * (t[1] - t[0])
        return t, cumulative

    def cdf(self, x: Any) -> Any:
        t, cumulative = self.grid
        return 0.5 + np.sign(x) * np.interp(np.log(np.abs(x)), t, cumulative)


def asymptotic(y: Any) -> Any:
    y = np.maximum(y, 500)
    return (1 - 1 / y + 2 / y**2 - 6 / y**3) / y


HORSESHOE = HorseshoeNoise()


def nodes(positive: bool, wide: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Points and weights for integrals over the positive numbers or the whole line: steps in the logarithm."""
    t = np.linspace(-60 if wide else -40, 60 if wide else 25, 12_001)
    points, weights = np.exp(t), np.exp(t) * (t[1] - t[0])
    return (points, weights) if positive else (np.r_[-points, points], np.r_[weights, weights])


def expectation(noise: Noise, function: Callable[[Any], Any]) -> float:
    """E[g(ξ)] by the trapezoidal rule in log|ξ|."""
    positive = bool(np.isneginf(noise.logpdf(-1.0)))
    points, weights = nodes(positive, wide=isinstance(noise, HorseshoeNoise))
    with np.errstate(over="ignore"):
        log_density = noise.logpdf(points)
    used = log_density > -700
    points, mass = points[used], weights[used] * np.exp(log_density[used])
    if function == noise.logpdf:
        return float(mass @ log_density[used])
    return float(mass @ np.asarray(function(torch.from_numpy(points))))


def radial_marginal(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Points and masses of one coordinate r·cos θ of a Radial noise of n ≥ 2 coordinates."""
    r = (np.arange(300) + 0.5) / 30
    angle = (np.arange(400) + 0.5) * math.pi / 400
    radius = np.exp(-(r**2) / 2)
    direction = np.sin(angle) ** (count - 2)
    points = np.outer(r, np.cos(angle)).ravel()
    mass = np.outer(radius / radius.sum(), direction / direction.sum()).ravel()
    return points, mass
