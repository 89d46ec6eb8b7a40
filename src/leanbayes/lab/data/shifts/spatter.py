"""Corruption by spatter on the lens: drops of water or of mud."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.lab.data.shifts.draws import Draws
from leanbayes.lab.data.shifts.filters import correlate, gaussian_blurred

__all__ = ["distance_to", "edges", "equalised", "spatter"]

_WATER = (175 / 255, 238 / 255, 238 / 255)  # pale turquoise
_MUD = (63 / 255, 42 / 255, 20 / 255)
_SOBEL = [[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]]
_TANGENT = math.tan(math.pi / 8)
_WEAK, _STRONG = 50, 150
_FAR = 20  # pixels; larger distances count as this one
_BOX = [[1.0] * 3] * 3
_EMBOSS = [[-2.0, -1.0, 0.0], [-1.0, 1.0, 1.0], [0.0, 1.0, 2.0]]
_SOLID = 0.8  # the opacity from which mud is visible


def spatter(
    x: Tensor,
    mean: float,
    scale: float,
    sigma: float,
    threshold: float,
    strength: float,
    what: Literal["water", "mud"],
    draws: Draws,
) -> Tensor:
    """Return x + m·turquoise for water, or (1 − m)·x + m·brown for mud, where m is the depth of the drops.

    Drops are where N(mean, scale²) noise, blurred by ``sigma`` pixels, is above ``threshold``. Mud is blurred again by
    ``strength`` pixels. Water has the depth ``strength`` where it is deepest, and a relief that follows from the
    distances to the edges of the drops. The relief is computed step by step as CIFAR-10-C does it with OpenCV, and
    rounded to bytes like there. Only the distances are exact here.
    """
    liquid = gaussian_blurred(mean + scale * draws.normal(1, *x.shape[2:]), sigma)
    drops = liquid >= threshold
    colour = torch.tensor(_WATER if what == "water" else _MUD, dtype=x.dtype, device=x.device).view(3, 1, 1)
    if what == "mud":
        mud = gaussian_blurred(drops.to(x.dtype), strength)
        mud = torch.where(mud < _SOLID, 0, mud)
        return (1 - mud) * x + mud * colour
    water = torch.where(drops, 255 * liquid, 0).floor().clamp(max=255)
    depth = water * _relief(water)
    deepest = depth.amax((1, 2, 3), keepdim=True)
    return x + strength * torch.where(deepest > 0, depth / deepest, 0) * colour


def _relief(water: Tensor) -> Tensor:
    """Return light and shade (N, 1, H, W), 0 to 255: smoothed, equalised distances from the edges, lit from a side."""
    height = (correlate(distance_to(edges(water), water.dtype), _BOX, "mirror") / 9).floor()
    lit = correlate(equalised(height), _EMBOSS, "mirror").clamp(0, 255)
    return (correlate(lit, _BOX, "mirror") / 9).round()


def edges(x: Tensor) -> Tensor:
    """Find edges in images (N, 1, H, W) from 0 to 255 by the method of Canny, with the thresholds 50 and 150 of OpenCV.

    A pixel is an edge if |∂h| + |∂w| (by Sobel) is the largest across the edge and above 150, or above 50 and connected
    to such a pixel.
    """
    across, down = (
        correlate(x, _SOBEL, "nearest"),
        correlate(x, [list(row) for row in zip(*_SOBEL, strict=True)], "nearest"),
    )
    size = across.abs() + down.abs()
    around = F.pad(size, (1, 1, 1, 1))
    height, width = x.shape[2:]

    def neighbour(h: int, w: int) -> Tensor:
        return around[:, :, 1 + h : 1 + h + height, 1 + w : 1 + w + width]

    flat, steep = down.abs() < _TANGENT * across.abs(), down.abs() > (_TANGENT + 2) * across.abs()  # tan 67.5° = t + 2
    largest = torch.where(
        flat,
        (size > neighbour(0, -1)) & (size >= neighbour(0, 1)),
        torch.where(
            steep,
            (size > neighbour(-1, 0)) & (size >= neighbour(1, 0)),
            torch.where(
                across * down < 0,
                (size > neighbour(-1, 1)) & (size > neighbour(1, -1)),
                (size > neighbour(-1, -1)) & (size > neighbour(1, 1)),
            ),
        ),
    )
    weak, edge = largest & (size > _WEAK), largest & (size > _STRONG)
    while True:
        grown = weak & (F.max_pool2d(edge.to(x.dtype), 3, 1, 1) > 0)
        if torch.equal(grown, edge):
            return edge
        edge = grown


def distance_to(pixels: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the distance of every pixel to the nearest true pixel of its image, but at most 20.

    The square of the distance is the least Δh² + Δw². The minimum runs first along the columns, then along the rows.
    """
    squares = torch.where(pixels, 0, _FAR**2).to(dtype)
    for axis in (2, 3):
        size = squares.shape[axis]
        least = squares.clone()
        for apart in range(1, min(_FAR, size)):
            for to, of in ((0, apart), (apart, 0)):
                part = least.narrow(axis, to, size - apart)
                torch.minimum(part, squares.narrow(axis, of, size - apart) + apart**2, out=part)
        squares = least
    return squares.sqrt()


def equalised(values: Tensor) -> Tensor:
    """Equalise the histogram of whole numbers 0 … 20, image by image, to 0 … 255.

    The result is 255·(F(v) − F(least))/(n − F(least)), where F(v) counts the pixels up to v. An image with a single
    value does not change, as in OpenCV.
    """
    index = values.flatten(1).long()
    ones = torch.ones((), dtype=torch.int64, device=values.device).expand_as(index)
    counts = torch.zeros(len(index), _FAR + 1, dtype=torch.int64, device=values.device).scatter_add_(1, index, ones)
    below = counts.cumsum(1)
    least = below.gather(1, index.amin(1, keepdim=True))
    above = index.shape[1] - least
    mapped = ((below - least) * 255 / above.clamp(min=1)).round().to(values.dtype).gather(1, index)
    return torch.where(above > 0, mapped, values.flatten(1)).view(values.shape)
