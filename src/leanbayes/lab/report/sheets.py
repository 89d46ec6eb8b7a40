"""Sheets: all slices of a scan side by side in one picture, of which a page shows one at a time."""

import io
import math
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from numpy.typing import NDArray
from PIL import Image

from leanbayes.lab.slices import Values

__all__ = ["FAINTEST", "Thinning", "doubt_colours", "doubt_gradient", "sheet", "sheet_columns"]

Pixels = NDArray[np.uint8]

FAINTEST = 0.01
"""The scale of epistemic uncertainty ends at this share of that of the total one at least. A network without random
weights has only rounding errors, which a scale of their own would draw as bright as doubt."""

_PICTURE = 1024  # the longest side of a single picture, and of one slice of a volume
_SLICE = 256
_MOST = 256  # slices of a volume: a sheet has at most 4096 x 4096 pixels, which a phone can hold
_SHEET = "inferno"  # black to yellow; dark means sure
_OPAQUE = 0.6  # the share of the scale from which on a map hides what lies below it, at full opacity


@dataclass(frozen=True)
class Thinning:
    """By how much the pictures of a case are smaller than the case.

    Args:
        factor: how many pixels along each side become one.
        step: every how-manieth slice is shown.
    """

    factor: int
    step: int

    @classmethod
    def of(cls, slices: int, rows: int, columns: int) -> "Thinning":
        """Return the least thinning at which a sheet is not too large."""
        longest = _PICTURE if slices == 1 else _SLICE
        return cls(math.ceil(max(rows, columns) / longest), math.ceil(slices / _MOST))

    @property
    def words(self) -> str:
        """What the page leaves out, as a sentence; empty if it is nothing."""
        parts = [f"1 of {self.factor} pixels along each side"] if self.factor > 1 else []
        parts += (
            [f"every {self.step}th slice" if self.step > 3 else f"1 of {self.step} slices"] if self.step > 1 else []
        )
        return f"The page shows {' and '.join(parts)}; the files hold all." if parts else ""


def sheet_columns(slices: int) -> int:
    """Return how many slices stand in a row of a sheet."""
    return math.ceil(math.sqrt(slices))


def sheet(pixels: Pixels) -> bytes:
    """Return the slices (slices, rows, columns, 3 or 4) as one WebP file, row by row in the order of the slices."""
    slices, rows, columns, channels = pixels.shape
    across = sheet_columns(slices)
    down = math.ceil(slices / across)
    grid = np.zeros((down * across, rows, columns, channels), np.uint8)
    grid[:slices] = pixels
    tiled = grid.reshape(down, across, rows, columns, channels).swapaxes(1, 2)
    image = Image.fromarray(tiled.reshape(down * rows, across * columns, channels))
    data = io.BytesIO()
    image.save(data, "WEBP", quality=85, method=2)
    return data.getvalue()


def doubt_colours(values: Values, highest: float) -> Pixels:
    """Return a map of doubt as red, green, blue and opacity: nothing where it is 0, bright where it is ``highest``."""
    level = np.clip(np.nan_to_num(np.asarray(values, np.float64)) / max(highest, 1e-12), 0, 1)
    colours = colormaps[_SHEET](level)
    colours[..., 3] = np.clip(level / _OPAQUE, 0, 1)
    pixels: Pixels = (colours * 255).round().astype(np.uint8)
    return pixels


def doubt_gradient(steps: int = 8) -> str:
    """Return the scale of `doubt_colours` as a CSS gradient."""
    rows = (colormaps[_SHEET](np.linspace(0, 1, steps))[:, :3] * 255).round().astype(int)
    return f"linear-gradient(to right, {', '.join(f'rgb({r} {g} {b})' for r, g, b in rows)})"
