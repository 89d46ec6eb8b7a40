"""Blur: Gaussian, through frosted glass, out of focus, of a moving and of an approaching camera.

Constants: ``make_cifar_c.py`` of Hendrycks and Dietterich (2019), https://github.com/hendrycks/robustness.
"""

import torch
from torch import Tensor

from leanbayes.lab.data.shifts.corruption import Corruption, levels
from leanbayes.lab.data.shifts.draws import Draws
from leanbayes.lab.data.shifts.filters import correlate, gaussian_blurred, gaussian_kernel, pixels_first, smear, zoomed

__all__ = ["BLURS", "defocus_blur", "disk", "gaussian_blur", "glass_blur", "motion_blur", "zoom_blur"]


def gaussian_blur(x: Tensor, sigma: float) -> Tensor:
    """A Gaussian filter of ``sigma`` pixels; beyond the edge is the nearest pixel."""
    return gaussian_blurred(x, sigma)


def glass_blur(x: Tensor, sigma: float, reach: int, times: int, draws: Draws) -> Tensor:
    """Gaussian blur, then each pixel takes the value of one near it, ``times`` times, then blur again.

    The other pixel is −reach … reach − 1 rows and columns away: here, where reach is 1, above, left, both or neither.
    The original means to swap the two, but assigns views of one array to each other, which copies the one to the other
    and leaves that as it was: so CIFAR-10-C's images were made, and so are these. It visits pixels from the lower
    right, so that none is copied after it was changed, and one gather does the same. Upper and left margins stay.
    """
    height, width = x.shape[2:]
    out = gaussian_blurred(x, sigma)
    h, w = torch.arange(height, device=x.device).view(-1, 1), torch.arange(width, device=x.device)
    moves = (h > reach) & (h <= height - reach) & (w > reach) & (w <= width - reach)
    for _ in range(times):
        down, right = draws.uniform(-reach, reach, 2, height, width).floor().clamp(max=reach - 1).long().unbind(1)
        places = torch.where(moves, (h + down) * width + w + right, h * width + w)
        out = out.flatten(2).gather(2, places.flatten(1)[:, None].expand(*x.shape[:2], -1)).view(x.shape)
    return gaussian_blurred(out, sigma)


def defocus_blur(x: Tensor, radius: float, soften: float) -> Tensor:
    """The average over a disk (see `disk`); beyond the edge is the mirror image."""
    return correlate(x, disk(radius, soften), "mirror")


def disk(radius: float, soften: float) -> list[list[float]]:
    """The pixels within ``radius`` of the middle, equally, under a 3x3 Gaussian filter of ``soften`` pixels.

    >>> [[round(weight, 3) for weight in row] for row in disk(0.3, 0.4)]
    [[0.002, 0.037, 0.002], [0.037, 0.845, 0.037], [0.002, 0.037, 0.002]]
    """
    reach = int(radius) + 1
    side = range(-reach, reach + 1)
    sharp = torch.tensor([[float(i**2 + j**2 <= radius**2) for j in side] for i in side], dtype=torch.float64)
    soft = gaussian_kernel(soften, 1)
    square = [[a * b for b in soft] for a in soft]
    kernel: list[list[float]] = correlate((sharp / sharp.sum())[None, None], square, "nearest")[0, 0].tolist()
    return kernel


def motion_blur(x: Tensor, radius: int, sigma: float, draws: Draws) -> Tensor:
    """Blur along a line between −45° and 45° (see `smear`)."""
    return smear(x, radius, sigma, draws.uniform(-45, 45))


def zoom_blur(x: Tensor, steps: int) -> Tensor:
    """The mean of the image and of ``steps`` images 1, 1.01, 1.02, … times as large."""
    images = pixels_first(x)
    total = images.clone()
    for step in range(steps):
        total += zoomed(images, 1 + step * (1.01 - 1))  # to the last digit as np.arange has them: crops depend on it
    return pixels_first(total) / (steps + 1)


BLURS = (
    Corruption("gaussian_blur", "blur", gaussian_blur, levels(0.4, 0.6, 0.7, 0.8, 1)),
    Corruption(
        "glass_blur",
        "blur",
        glass_blur,
        ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        random=True,
    ),
    Corruption("defocus_blur", "blur", defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    Corruption("motion_blur", "blur", motion_blur, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)), random=True),
    # np.arange(1, end, 0.01) with end 1.06, 1.11, 1.16, 1.21, 1.26: rounding lets two of them reach their end.
    Corruption("zoom_blur", "blur", zoom_blur, levels(7, 12, 16, 21, 26)),
)
