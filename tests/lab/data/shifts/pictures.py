"""Images with smooth parts, texture and edges, as photographs have them."""

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from leanbayes.lab.data.shifts.draws import Draws


def pictures(count: int, channels: int = 3, height: int = 32, width: int = 32, seed: int = 0) -> Tensor:
    """Blurred noise at three scales, with a rectangle of another colour in each; float64, 0.05 to 0.95."""
    rng = np.random.default_rng(seed)
    out = np.zeros((count, channels, height, width))
    for sigma, size in ((8, 1.0), (3, 0.5), (1, 0.2)):
        layer = ndimage.gaussian_filter(rng.normal(size=out.shape), (0, 0, sigma, sigma), mode="wrap")
        out += size * layer / layer.std()
    for one in out:
        top, left = rng.integers(0, height // 2), rng.integers(0, width // 2)
        one[:, top : top + height // 3, left : left + width // 3] += rng.normal(size=(channels, 1, 1))
    low, high = out.min((1, 2, 3), keepdims=True), out.max((1, 2, 3), keepdims=True)
    return torch.from_numpy(0.05 + 0.9 * (out - low) / (high - low))


def draws(like: Tensor, seed: int = 0, first: int = 0) -> Draws:
    return Draws(seed, first, like)
