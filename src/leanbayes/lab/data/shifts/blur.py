"""Corruptions that blur: Gaussian blur, frosted glass, defocus, and the motion of a moving or approaching camera.

The constants are those of ``make_cifar_c.py`` of Hendrycks and Dietterich (2019), https://github.com/hendrycks/robustness.
"""

import torch
from torch import Tensor

from leanbayes.lab.data.shifts.corruption import Corruption, levels
from leanbayes.lab.data.shifts.draws import Draws
from leanbayes.lab.data.shifts.filters import correlate, gaussian_blurred, gaussian_kernel, pixels_first, smear, zoomed

__all__ = ["BLURS", "defocus_blur", "disk", "gaussian_blur", "glass_blur", "motion_blur", "zoom_blur"]


def gaussian_blur(x: Tensor, sigma: float) -> Tensor:
    """Apply a Gaussian filter of ``sigma`` pixels. Beyond the edge, the nearest pixel is repeated."""
    return gaussian_blurred(x, sigma)


def glass_blur(x: Tensor, sigma: float, reach: int, times: int, draws: Draws) -> Tensor:
    """Blur, replace each pixel by a random one near it ``times`` times, and blur again.

    The other pixel is −reach … reach − 1 rows and columns away. With a reach of 1 it lies above, to the left, both or
    neither. The published code wants to swap the two pixels. It assigns views of one array to each other, though, so
    that it copies one pixel and leaves the other unchanged. CIFAR-10-C was made with that code, so this function copies
    too. The code visits pixels from the lower right, and never copies a pixel that it has changed. One gather
    therefore does the same. The upper and left margins stay as they are.
    """
    height, width = x.shape[2:]
    out = gaussian_blurred(x, sigma)
    h, w = torch.arange(height, device=x.device).view(-1, 1), torch.arange(width, device=x.device)
    moves = (h > reach) & (h <= height - reach) & (w > reach) & (w <= width - reach)
    for _ in range(times):
        down, right = draws.uniform(-reach, reach, 2, height, width).floor().clamp(max=reach - 1).long().unbind(1)
        sources = torch.where(moves, (h + down) * width + w + right, h * width + w)
        out = out.flatten(2).gather(2, sources.flatten(1)[:, None].expand(*x.shape[:2], -1)).view(x.shape)
    return gaussian_blurred(out, sigma)


def defocus_blur(x: Tensor, radius: float, soften: float) -> Tensor:
    """Average over a disk (see `disk`). Beyond the edge, the image is mirrored."""
    return correlate(x, disk(radius, soften), "mirror")


def disk(radius: float, soften: float) -> list[list[float]]:
    """Return a kernel that weighs all pixels within ``radius`` equally, softened by a 3x3 Gaussian filter.

    Args:
        radius: the radius of the disk in pixels.
        soften: the standard deviation of the Gaussian filter in pixels.

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
    """Blur along a line whose random angle is between −45° and 45° (see `smear`)."""
    return smear(x, radius, sigma, draws.uniform(-45, 45))


def zoom_blur(x: Tensor, steps: int) -> Tensor:
    """Average the image and ``steps`` images that are 1, 1.01, 1.02, … times as large."""
    images = pixels_first(x)
    total = images.clone()
    for step in range(steps):
        total += zoomed(images, 1 + step * (1.01 - 1))  # the same digits as np.arange gives, on which crops depend
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
