"""Digital corruptions: contrast, saturation, JPEG compression, coarse pixels and elastic distortion.

The constants are those of ``make_cifar_c.py`` of Hendrycks and Dietterich (2019), https://github.com/hendrycks/robustness.
"""

from io import BytesIO

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from leanbayes.lab.data.shifts.corruption import Corruption, levels
from leanbayes.lab.data.shifts.draws import Draws, on_host
from leanbayes.lab.data.shifts.filters import gaussian_blurred, interpolate, pixels_first, resample

__all__ = ["DIGITALS", "contrast", "elastic_transform", "jpeg_compression", "pixelate", "saturate"]


def contrast(x: Tensor, keep: float) -> Tensor:
    """Return m + keep·(x − m), where m is the mean of each channel of an image."""
    mean = x.mean((2, 3), keepdim=True)
    return mean + keep * (x - mean)


def saturate(x: Tensor, factor: float, more: float) -> Tensor:
    """Replace the saturation S by S·factor + more, in the space of hue, saturation and value.

    With V = max(R, G, B), the saturation obeys V·S = V − min(R, G, B), and the hue fixes f = (V − x)/(V·S), so that
    x = V·(1 − S·f). Grey has no hue and counts as red: f = (0, 1, 1). A grey image therefore does not change while
    ``more`` is 0, and becomes darker otherwise.
    """
    value = x.amax(1, keepdim=True)
    span = value - x.amin(1, keepdim=True)
    saturation = torch.where(value > 0, span / value, 0)
    red = torch.tensor([0, 1, 1], dtype=x.dtype, device=x.device).view(3, 1, 1)
    fade = torch.where(span > 0, (value - x) / span, red)
    return value * (1 - (saturation * factor + more).clamp(0, 1) * fade)


def jpeg_compression(x: Tensor, quality: int) -> Tensor:
    """Write the images as JPEG files in memory and read them again. This rounds them to bytes."""
    pixels = on_host((255 * x).round().to(torch.uint8).permute(0, 2, 3, 1))
    compressed = []
    for image in pixels:
        file = BytesIO()
        Image.fromarray(image.squeeze(2) if image.shape[2] == 1 else image).save(file, "JPEG", quality=quality)
        compressed.append(np.asarray(Image.open(file)).reshape(image.shape))
    return torch.from_numpy(np.stack(compressed)).to(x.device).permute(0, 3, 1, 2).to(x.dtype) / 255


def pixelate(x: Tensor, share: float) -> Tensor:
    """Shrink each side of n pixels to int(share·n) pixels and enlarge it again, both with Pillow's box filter."""
    images = pixels_first(x)
    for axis in (0, 1):
        size = images.shape[axis]
        fewer = max(int(size * share), 1)
        images = resample(resample(images, axis, _boxes(size, fewer)), axis, _boxes(fewer, size))
    return pixels_first(images)


def _boxes(size: int, wanted: int) -> list[list[tuple[int, float]]]:
    """Return, for each of the ``wanted`` new pixels, the old pixels that it averages, with their weights.

    These are the pixels of the ``size`` old ones with centres in (c − s/2, c + s/2]. Here c is the centre of the new
    pixel in units of the old pixels, and s is its width, but at least one.
    """
    scale = size / wanted
    width = max(scale, 1.0)
    taps = []
    for i in range(wanted):
        inside = [p for p in range(size) if -0.5 < (p + 0.5 - (i + 0.5) * scale) / width <= 0.5]
        taps.append([(pixel, 1 / len(inside)) for pixel in inside])
    return taps


def elastic_transform(x: Tensor, strength: float, smooth: float, shake: float, draws: Draws) -> Tensor:
    """Apply a random affine map, then smooth random displacements. Lengths are in units of the shorter side.

    The affine map moves three corners of a square in the middle by U(−shake, shake) in each direction. The
    displacements are U(−1, 1) for each pixel, smoothed by a Gaussian filter of ``smooth`` and multiplied by
    ``strength``.
    """
    height, width = x.shape[2:]
    side = min(height, width)
    arm = side // 3
    middle = torch.tensor([height // 2, width // 2], dtype=x.dtype, device=x.device)
    corners = middle + arm * torch.tensor([[1, 1], [-1, 1], [-1, -1]], dtype=x.dtype, device=x.device)
    moved = corners + draws.uniform(-shake * side, shake * side, 3, 2)
    # The map from an output pixel to where its value comes from: (moved, 1) @ back = corners.
    back = torch.linalg.solve(torch.cat([moved, torch.ones_like(moved[:, :, :1])], 2), corners.expand_as(moved))
    h = torch.arange(height, dtype=x.dtype, device=x.device).view(-1, 1)
    w = torch.arange(width, dtype=x.dtype, device=x.device)
    (a, d), (b, e), (c, f) = (row.unbind(1) for row in back[:, :, :, None, None].unbind(1))
    x = interpolate(x, a * h + b * w + c, d * h + e * w + f, "mirror")
    field = draws.uniform(-1, 1, 2, height, width)
    down, right = (strength * side * gaussian_blurred(field, smooth * side, "reflect", 3.0)).unbind(1)
    return interpolate(x, h + down, w + right, "reflect")


DIGITALS = (
    Corruption("contrast", "digital", contrast, levels(0.75, 0.5, 0.4, 0.3, 0.15)),
    Corruption("saturate", "digital", saturate, ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)), colour=True),
    Corruption("jpeg_compression", "digital", jpeg_compression, levels(80, 65, 58, 50, 40)),
    Corruption("pixelate", "digital", pixelate, levels(0.95, 0.9, 0.85, 0.75, 0.65)),
    Corruption(
        "elastic_transform",
        "digital",
        elastic_transform,
        ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
        random=True,
    ),
)
