"""Outlines of masks as paths of SVG, which stay thin and sharp at every size of the screen."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["outline"]

_LONGEST = 20_000  # characters of one path: the outline of noise is drawn more coarsely


def outline(mask: NDArray[np.bool_], longest: int = _LONGEST) -> str:
    """Return the edges between the pixels of a mask and those outside it, as the path of an SVG image of its size.

    Edges that lie in one line are one stroke. A path that is longer than ``longest`` is drawn on blocks of 2 x 2, or
    4 x 4, … pixels, which are inside if any of their pixels is.

    >>> outline(np.array([[False, True]]))
    'M1 0h1M1 1h1M1 0v1M2 0v1'
    """
    step, blocks = 1, mask
    while True:
        strokes = _strokes(blocks, step, "h") + _strokes(blocks.T, step, "v")
        path = "".join(strokes)
        if len(path) <= longest or max(blocks.shape) == 1:
            return path
        step *= 2
        wide = np.pad(mask, [(0, -side % step) for side in mask.shape])
        rows, columns = (side // step for side in wide.shape)
        blocks = np.asarray(wide.reshape(rows, step, columns, step).any((1, 3)))


def _strokes(mask: NDArray[np.bool_], step: int, letter: str) -> list[str]:
    """The edges across the first axis: each run of them along the second axis is one stroke."""
    wide = np.pad(mask, ((1, 1), (0, 0)))
    edges = np.pad(wide[1:] != wide[:-1], ((0, 0), (1, 1))).astype(np.int8)
    change = np.diff(edges, axis=1)
    lines, begins = np.nonzero(change == 1)
    ends = np.nonzero(change == -1)[1]
    strokes = []
    for line, begin, end in zip((lines * step).tolist(), (begins * step).tolist(), (ends * step).tolist(), strict=True):
        start = f"{begin} {line}" if letter == "h" else f"{line} {begin}"
        strokes.append(f"M{start}{letter}{end - begin}")
    return strokes
