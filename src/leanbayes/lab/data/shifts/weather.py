"""Corruptions by weather: snow, frost, fog and bright light. Spatter has its own module.

The constants are those of ``make_cifar_c.py`` of Hendrycks and Dietterich (2019), https://github.com/hendrycks/robustness.
"""

import torch
from torch import Tensor

from leanbayes.lab.data.shifts.corruption import Corruption, levels, luminance
from leanbayes.lab.data.shifts.draws import Draws
from leanbayes.lab.data.shifts.filters import pixels_first, smear, zoomed
from leanbayes.lab.data.shifts.spatter import spatter

__all__ = ["WEATHERS", "brightness", "fog", "frost", "plasma", "snow"]

_ICE = (0.78, 0.9, 1.0)  # white with a touch of blue
_ROUGH = 1.4  # the decay of the fractal noise of frost, which gives ridges at every scale


def plasma(draws: Draws, height: int, width: int, decay: float) -> Tensor:
    """Draw fractal noise (N, 1, height, width) by the diamond-square algorithm.

    The noise is computed on a square that wraps around and is scaled to 0 … 1 there. The side of the square is the
    power of two that holds both sides. Each point is the mean of its four neighbours at the scale of the step, plus
    U(−a, a). When the step is halved, a is divided by decay².
    """
    side = 1 << (max(height, width) - 1).bit_length()
    shake = draws.uniform(-1, 1, side, side)
    out = torch.zeros_like(shake)
    step, size = side, 1.0
    while step > 1:
        half = step // 2
        corner = out[:, ::step, ::step]
        both = corner + corner.roll(-1, 1)
        centre = (both + both.roll(-1, 2)) / 4 + size * shake[:, half::step, half::step]
        above = (centre + centre.roll(1, 1) + corner + corner.roll(-1, 2)) / 4 + size * shake[:, ::step, half::step]
        left = (centre + centre.roll(1, 2) + corner + corner.roll(-1, 1)) / 4 + size * shake[:, half::step, ::step]
        out[:, half::step, half::step], out[:, ::step, half::step], out[:, half::step, ::step] = centre, above, left
        step, size = half, size / decay**2
    out -= out.amin((1, 2), keepdim=True)
    out /= out.amax((1, 2), keepdim=True)
    return out[:, None, :height, :width]


def fog(x: Tensor, amount: float, decay: float, draws: Draws) -> Tensor:
    """Return (x + amount·plasma)·m/(m + amount), where m is the largest value of the image."""
    largest = x.amax((1, 2, 3), keepdim=True)
    return (x + amount * plasma(draws, x.shape[2], x.shape[3], decay)) * largest / (largest + amount)


def frost(x: Tensor, keep: float, amount: float, draws: Draws) -> Tensor:
    """Return keep·x + amount·ice, where the ice is SYNTHETIC: bluish white ridges of fractal noise.

    CIFAR-10-C takes the ice from six photographs, which are not part of this package. The constants are those of
    CIFAR-10-C, but the texture is not. Results on this corruption cannot be compared with published ones.
    """
    ridges = 1 - (2 * plasma(draws, x.shape[2], x.shape[3], _ROUGH) - 1).abs()
    ice = ridges * torch.tensor(_ICE, dtype=x.dtype, device=x.device).view(3, 1, 1)
    return keep * x + amount * ice


def snow(
    x: Tensor,
    mean: float,
    scale: float,
    zoom: float,
    threshold: float,
    radius: int,
    sigma: float,
    keep: float,
    draws: Draws,
) -> Tensor:
    """Draw flakes in front of a whitened image.

    The result is keep·x + (1 − keep)·max(x, 1.5·grey + ½) + s + s turned by 180°. The flakes s are N(mean, scale²)
    noise, enlarged ``zoom`` times, where it is above ``threshold``. They are blurred along a line whose random angle
    is between −135° and −45° (see `smear`).
    """
    noise = pixels_first(mean + scale * draws.normal(1, *x.shape[2:]))
    flakes = pixels_first(zoomed(noise, zoom)).clamp(0, 1)
    flakes = torch.where(flakes < threshold, 0, flakes)
    flakes = smear(flakes, radius, sigma, draws.uniform(-135, -45))
    white = torch.maximum(x, 1.5 * luminance(x) + 0.5)
    return keep * x + (1 - keep) * white + flakes + flakes.rot90(2, (2, 3))


def brightness(x: Tensor, amount: float) -> Tensor:
    """Replace V by V + amount in the space of hue, saturation and value.

    V is max(R, G, B), so red, green and blue scale with it.
    """
    value = x.amax(1, keepdim=True)
    share = torch.where(value > 0, x / value, 1)  # black has no hue and becomes grey
    return share * (value + amount).clamp(max=1)


WEATHERS = (
    Corruption(
        "snow",
        "weather",
        snow,
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        random=True,
        colour=True,
    ),
    Corruption(
        "frost",
        "weather",
        frost,
        ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
        random=True,
        colour=True,
    ),
    Corruption("fog", "weather", fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)), random=True),
    Corruption("brightness", "weather", brightness, levels(0.05, 0.1, 0.15, 0.2, 0.3)),
    Corruption(
        "spatter",
        "weather",
        spatter,
        (
            (0.62, 0.1, 0.7, 0.7, 0.5, "water"),
            (0.65, 0.1, 0.8, 0.7, 0.5, "water"),
            (0.65, 0.3, 1, 0.69, 0.5, "water"),
            (0.65, 0.1, 0.7, 0.69, 0.6, "mud"),
            (0.65, 0.1, 0.5, 0.68, 0.6, "mud"),
        ),
        random=True,
        colour=True,
    ),
)
