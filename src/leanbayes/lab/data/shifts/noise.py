"""Corruptions by noise: Gaussian, Poisson, salt and pepper, and noise in proportion to the value.

The constants are those of ``make_cifar_c.py`` of Hendrycks and Dietterich (2019), https://github.com/hendrycks/robustness.
"""

import torch
from torch import Tensor

from leanbayes.lab.data.shifts.corruption import Corruption, levels
from leanbayes.lab.data.shifts.draws import Draws

__all__ = ["NOISES", "gaussian_noise", "impulse_noise", "shot_noise", "speckle_noise"]


def gaussian_noise(x: Tensor, scale: float, draws: Draws) -> Tensor:
    """Return x + scale·ξ with ξ ~ N(0, 1)."""
    return x + scale * draws.normal(*x.shape[1:])


def shot_noise(x: Tensor, photons: float, draws: Draws) -> Tensor:
    """Return Poisson(photons·x)/photons, whose mean is x and variance x/photons before values above 1 are cut off."""
    return draws.poisson(photons * x) / photons


def impulse_noise(x: Tensor, amount: float, draws: Draws) -> Tensor:
    """Replace values by 0 or by 1, each with probability amount/2. Every channel has its own draws."""
    u = draws.uniform(0, 1, *x.shape[1:])
    return torch.where(u < amount / 2, 0, torch.where(u >= 1 - amount / 2, 1, x))


def speckle_noise(x: Tensor, scale: float, draws: Draws) -> Tensor:
    """Return x + scale·x·ξ with ξ ~ N(0, 1)."""
    return x + scale * x * draws.normal(*x.shape[1:])


NOISES = (
    Corruption("gaussian_noise", "noise", gaussian_noise, levels(0.04, 0.06, 0.08, 0.09, 0.10), random=True),
    Corruption("shot_noise", "noise", shot_noise, levels(500, 250, 100, 75, 50), random=True),
    Corruption("impulse_noise", "noise", impulse_noise, levels(0.01, 0.02, 0.03, 0.05, 0.07), random=True),
    Corruption("speckle_noise", "noise", speckle_noise, levels(0.06, 0.1, 0.12, 0.16, 0.2), random=True),
)
