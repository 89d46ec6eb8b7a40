"""Slices of images and scans as a page shows them: turned as a radiologist expects, small enough, and with a scale.

Arrays of scans have the axes of RAS (to the right, to the front, up). A page shows a scan as if the patient were seen
from the feet: the patient's right is on the left, the front is on top.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["View", "largest_slice", "reduced", "reduced_labels", "shades"]

Values = NDArray[Any]
_RIGHT, _WRONG = "RAS", "LPI"  # the letters at the two ends of each axis of RAS
_DARKEST, _BRIGHTEST = 0.5, 99.5  # percentiles of a scan that are drawn black and white


@dataclass(frozen=True)
class View:
    """How an array becomes slices.

    Args:
        axes: how many axes the image has: 2 for a picture or a single slice, 3 for a volume.
        spacing: the distance of two voxels along each axis in millimetres, for scans, whose axes are those of RAS. None
            for pictures and arrays, which are shown as they are; the first axis of a volume then counts its slices.
        across: for scans, the axis of RAS along which the slices follow each other.
    """

    axes: int
    spacing: tuple[float, ...] | None = None
    across: int = 2

    @classmethod
    def of(cls, shape: Sequence[int], spacing: Sequence[float] | None) -> "View":
        """Return the view of an image of this shape; a scan with a single slice shows that slice."""
        across = list(shape).index(1) if len(shape) == 3 and 1 in shape else 2
        return cls(len(shape), None if spacing is None else tuple(spacing), across)

    def slices(self, values: Values) -> Values:
        """Return an array whose last axes are those of the image as (..., slices, rows, columns)."""
        if self.axes == 2:
            values = values[..., None, :, :]
        elif self.spacing is not None:
            values = np.moveaxis(values, self.across - 3, -3)
        if self.spacing is None:
            return values
        return np.swapaxes(values, -1, -2)[..., ::-1, ::-1]

    @property
    def aspect(self) -> float:
        """The height of a pixel over its width."""
        if self.spacing is None:
            return 1.0
        across, down = self._plane
        return self.spacing[down] / self.spacing[across]

    @property
    def sides(self) -> tuple[str, str]:
        """The letters of the patient's directions at the left and at the right of the page; empty for pictures."""
        if self.spacing is None or self.axes == 2:  # which plane a single slice of a set shows is not known
            return "", ""
        return _RIGHT[self._plane[0]], _WRONG[self._plane[0]]

    @property
    def _plane(self) -> tuple[int, int]:
        """The axes that run along the columns and along the rows of the page."""
        if self.axes == 2:
            return 0, 1
        first, second = (axis for axis in range(3) if axis != self.across)
        return first, second


def largest_slice(labels: Values, otherwise: Values) -> int:
    """Return the slice of (slices, rows, columns) with the largest foreground, or else the largest sum of another map.

    >>> largest_slice(np.array([[[0]], [[2]]]), np.zeros((2, 1, 1)))
    1
    """
    marked = (labels > 0).sum((1, 2))
    return int(marked.argmax()) if marked.any() else int(np.nan_to_num(otherwise).sum((1, 2)).argmax())


def reduced(values: Values, factor: int) -> Values:
    """Return the means of blocks of factor x factor pixels of (..., rows, columns).

    Blocks at the border repeat the last pixels.

    >>> reduced(np.arange(6.0).reshape(1, 6), 4)        # the second block is 4, 5, 5, 5
    array([[1.5 , 4.75]])
    """
    if factor == 1:
        return values
    wide = _filled(values, factor)
    rows, columns = (side // factor for side in wide.shape[-2:])
    means: Values = wide.reshape(*wide.shape[:-2], rows, factor, columns, factor).mean((-3, -1))
    return means


def reduced_labels(labels: Values, factor: int) -> Values:
    """Return the label in the middle of each block of factor x factor pixels, on the same grid as `reduced`."""
    if factor == 1:
        return labels
    middle = slice(factor // 2, None, factor)
    return _filled(labels, factor)[..., middle, middle]


def _filled(values: Values, factor: int) -> Values:
    """Repeat the last rows and columns until the sides are multiples of the factor."""
    missing = [-side % factor for side in values.shape[-2:]]
    return np.pad(values, [(0, 0)] * (values.ndim - 2) + [(0, gap) for gap in missing], mode="edge")


def shades(image: Values) -> NDArray[np.float64]:
    """Return an image or scan (channels, ...) as numbers from 0, black, to 1, white.

    Bytes and numbers in [0, 1] keep their brightness and their colours. Other numbers, such as Hounsfield units, are
    spread between their percentiles, the same for all channels and slices, so that a few bright voxels do not make the
    rest black.
    """
    values = np.asarray(image, np.float64)
    if image.dtype == np.uint8:
        return values / 255
    known = values[np.isfinite(values)]
    if not known.size:
        return np.zeros(values.shape)
    slack = 1e-4
    if -slack <= known.min() and known.max() <= 1 + slack and np.ptp(known) > 0.1:
        inside: NDArray[np.float64] = np.clip(values, 0, 1)
        return inside
    low, high = np.percentile(known, [_DARKEST, _BRIGHTEST])
    if not high > low:
        low, high = float(known.min()), float(known.max())
    scale = high - low if high > low else math.inf
    spread: NDArray[np.float64] = np.clip(np.nan_to_num((values - low) / scale), 0, 1)
    return spread
