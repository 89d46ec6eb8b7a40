"""Pictures of examples, segmentations and entropy maps, written into the page as ``data:`` addresses."""

import base64
import io

import numpy as np
from matplotlib import colormaps
from numpy.typing import NDArray
from PIL import Image

from leanbayes.lab.report.read import Numbers

__all__ = ["FALSE_NEGATIVE", "FALSE_POSITIVE", "TRUE_POSITIVE", "data_address", "heat", "overlay", "picture", "scale"]

Pixels = NDArray[np.uint8]

# Green, blue and red as in Abboud et al. 2024, figure 3, in shades of Okabe and Ito, which readers with colour
# blindness can tell apart.
TRUE_POSITIVE, FALSE_POSITIVE, FALSE_NEGATIVE = "#009e73", "#0072b2", "#d55e00"
_LARGEST = 192  # pixels along the longer side, so that a page of six methods stays small
_EXACT = 64  # up to this size a picture keeps every pixel (PNG); larger ones are compressed as photographs (JPEG)


def picture(image: Numbers) -> Pixels:
    """Turn (H, W) or (H, W, channels) in [0, 1] into RGB bytes: grey unless there are 3 channels, and black for NaN."""
    grey = image if image.ndim == 2 else image.mean(-1)
    colour = image if image.ndim == 3 and image.shape[-1] == 3 else np.repeat(grey[..., None], 3, axis=-1)
    pixels: Pixels = (np.clip(np.nan_to_num(colour), 0, 1) * 255).round().astype(np.uint8)
    return pixels


def overlay(image: Numbers, truth: Numbers, predicted: Numbers, strength: float = 0.7) -> Pixels:
    """Paint the true and the predicted foreground (classes above 0) over the picture.

    Correct pixels are green, invented ones blue, and missed ones orange. A foreground pixel for which another
    foreground class is predicted counts as missed.
    """
    base = picture(image).astype(np.float64)
    base = np.repeat(base.mean(-1, keepdims=True), 3, axis=-1)  # only the verdict has colour
    correct = (truth > 0) & (predicted == truth)
    missed = (truth > 0) & (predicted != truth)
    invented = (truth == 0) & (predicted > 0)
    for mask, colour in ((correct, TRUE_POSITIVE), (invented, FALSE_POSITIVE), (missed, FALSE_NEGATIVE)):
        paint = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
        base[mask] = (1 - strength) * base[mask] + strength * paint
    return base.round().astype(np.uint8)


def heat(values: Numbers, high: float) -> Pixels:
    """Draw a map from 0 (dark) to ``high`` (bright), in a scale that suits readers with colour blindness."""
    level = np.clip(np.nan_to_num(values) / max(high, 1e-12), 0, 1)
    coloured: Pixels = (colormaps["cividis"](level)[..., :3] * 255).round().astype(np.uint8)
    return coloured


def scale(steps: int = 8) -> str:
    """Return the scale of `heat` as a CSS gradient, for legends."""
    rows = (colormaps["cividis"](np.linspace(0, 1, steps))[:, :3] * 255).round().astype(int)
    return f"linear-gradient(to right, {', '.join(f'rgb({r} {g} {b})' for r, g, b in rows)})"


def data_address(pixels: Pixels) -> str:
    """Return the picture as a ``data:`` address, so that the page fetches nothing."""
    image = Image.fromarray(pixels)
    buffer = io.BytesIO()
    if max(image.size) <= _EXACT:
        image.save(buffer, "PNG", optimize=True)
        kind = "png"
    else:
        image.thumbnail((_LARGEST, _LARGEST))
        image.save(buffer, "JPEG", quality=85, subsampling=0)
        kind = "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
