"""Pictures that a person can read: an image with the contours of the prediction, beside a map of its uncertainty."""

import io

import numpy as np
from PIL import Image

from leanbayes.lab.report.pictures import heat, picture
from leanbayes.lab.slices import Values, shades

__all__ = ["contours", "overlay_png"]

_COLOURS = ((213, 94, 0), (86, 180, 233), (240, 228, 66), (0, 158, 115), (204, 121, 167))  # Okabe and Ito
_SMALLEST = 256  # pixels of the shorter side: small images are enlarged
_GAP = 4


def contours(
    mask: "np.ndarray[tuple[int, int], np.dtype[np.bool_]]",
) -> "np.ndarray[tuple[int, int], np.dtype[np.bool_]]":
    """Return the pixels of a mask that have a neighbour outside it, or lie at the border of the image.

    >>> contours(np.ones((3, 3), bool)).sum()
    np.int64(8)
    """
    wide = np.pad(mask, 1)
    inside = wide[:-2, 1:-1] & wide[2:, 1:-1] & wide[1:-1, :-2] & wide[1:-1, 2:]
    edge: np.ndarray[tuple[int, int], np.dtype[np.bool_]] = mask & ~inside
    return edge


def overlay_png(image: Values, classes: Values, total: Values, most: float) -> bytes:
    """Return a PNG file: the image with a contour of each class above 0, and beside it the total uncertainty.

    Args:
        image: the image, (channels, height, width), of any range; of other than three channels the first is shown.
        classes: the predicted classes, (height, width).
        total: the total uncertainty, (height, width).
        most: the uncertainty that is drawn brightest.
    """
    base = picture(np.moveaxis(shades(image if len(image) == 3 else image[:1]), 0, -1))
    factor = max(1, -(-_SMALLEST // min(base.shape[:2])))
    large, labels = (np.repeat(np.repeat(values, factor, 0), factor, 1) for values in (base, classes))
    for label in range(1, int(labels.max(initial=0)) + 1):
        large[contours(labels == label)] = _COLOURS[(label - 1) % len(_COLOURS)]
    doubt = heat(np.asarray(total, np.float64), most)
    doubt = np.repeat(np.repeat(doubt, factor, 0), factor, 1)
    gap = np.full((len(large), _GAP, 3), 255, np.uint8)
    data = io.BytesIO()
    Image.fromarray(np.concatenate([large, gap, doubt], 1)).save(data, format="PNG")
    return data.getvalue()
