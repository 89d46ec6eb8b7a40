"""Calibration near the edges of segmentations, where it is decided how large a structure is.

Most pixels of a scan lie far from any edge, and a network is right and sure there. A calibration error over all pixels
is therefore small for every method. This one counts only the pixels in a band around the edges of the true mask.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from leanbayes.errors import InputError, ShapeMismatch
from leanbayes.metrics.calibration import error_of_bins, width_bins
from leanbayes.metrics.metric import Metric
from leanbayes.metrics.quality import IGNORE, cells_of

__all__ = ["boundary_bins", "boundary_calibration_error", "edge_band"]

_BINS = 15


def edge_band(
    masks: Tensor, distance: float, spacing: Sequence[float] | None = None, counted: Tensor | None = None
) -> Tensor:
    """Return which pixels have a pixel of another class within a distance of them, as booleans.

    The distance is that of the centres of pixels, so with ``distance=1`` and no spacing the band is the pixels that
    touch an edge with a side. It is exact: d² is the sum over axes of (offset · spacing)², and no offset is larger than
    distance/spacing, so it is enough to look so far along one axis after the other.

    Args:
        masks: class indices, (N, ...), with one to three axes of pixels.
        distance: the width of the band on either side of an edge, in the unit of the spacing.
        spacing: the distance of two neighbours along each axis; by default 1.
        counted: which pixels count. Others are in no band, and are no other class: an edge of the part that counts is
            no edge of a structure.

    >>> edge_band(torch.tensor([[0, 0, 0, 1, 1, 1]]), 2).int()
    tensor([[0, 1, 1, 1, 1, 0]], dtype=torch.int32)
    """
    axes = masks.dim() - 1
    steps = [1.0] * axes if spacing is None else [float(step) for step in spacing]
    if axes < 1 or len(steps) != axes:
        raise ShapeMismatch(
            f"need masks (N, ...) and one spacing for each axis of pixels, got {tuple(masks.shape)} and {steps}"
        )
    if not (0 < distance < math.inf and all(0 < step < math.inf for step in steps)):
        raise InputError(f"distance and spacing must be positive and finite, got {distance} and {steps}")
    known = torch.ones_like(masks, dtype=torch.bool) if counted is None else counted
    band = torch.zeros_like(known)
    for label in masks[known].unique().tolist():
        inside = known & (masks == label)
        band |= inside & (_squares_to(known & ~inside, distance, steps) <= distance**2 * (1 + 1e-6))
    return band


def _squares_to(marked: Tensor, distance: float, steps: Sequence[float]) -> Tensor:
    """Return the squared distance to the nearest marked pixel where it is at most ``distance``, else infinity."""
    squares = torch.where(marked, 0.0, torch.inf)
    for axis, step in enumerate(steps, start=1):
        reach = min(int(distance / step * (1 + 1e-6)), squares.shape[axis] - 1)
        nearest = squares.clone()
        for offset in range(1, reach + 1):
            cost = (offset * step) ** 2
            length = squares.shape[axis] - offset
            for here, there in ((0, offset), (offset, 0)):
                part = nearest.narrow(axis, here, length)
                torch.minimum(part, squares.narrow(axis, there, length) + cost, out=part)
        squares = nearest
    return squares


def boundary_bins(
    probabilities: Tensor,
    targets: Tensor,
    distance: float,
    spacing: Sequence[float] | None = None,
    *,
    bins: int = _BINS,
    ignore_index: int = IGNORE,
) -> Tensor:
    """Return the sums of `leanbayes.metrics.calibration.width_bins` over the band, (bins, 3), which may be added up.

    Args:
        probabilities: of classes, (N, C, ...).
        targets: class indices, (N, ...).
        distance: the width of the band on either side of an edge.
        spacing: the distance of two neighbours along each axis; by default 1.
        bins: how many bins of confidence there are.
        ignore_index: targets with this value do not count.
    """
    band = edge_band(targets, distance, spacing, targets != ignore_index)
    chosen = targets.where(band, ignore_index)
    if not band.any():
        return torch.zeros(bins, 3, dtype=torch.float64, device=targets.device)
    return width_bins(cells_of(probabilities, chosen, ignore_index), bins)


def boundary_calibration_error(
    probabilities: Tensor,
    targets: Tensor,
    distance: float = 2.0,
    spacing: Sequence[float] | None = None,
    *,
    bins: int = _BINS,
    ignore_index: int = IGNORE,
) -> Tensor:
    """Return the expected calibration error of the pixels near an edge of the true mask; NaN if there is no edge.

    Args:
        probabilities: of classes, (N, C, ...).
        targets: class indices, (N, ...).
        distance: the width of the band on either side of an edge, in the unit of the spacing.
        spacing: the distance of two neighbours along each axis, such as millimetres; by default 1.
        bins: how many bins of confidence there are.
        ignore_index: targets with this value do not count.

    >>> sure = torch.tensor([[[0.9, 0.9, 0.9, 0.1], [0.1, 0.1, 0.1, 0.9]]])
    >>> boundary_calibration_error(sure, torch.tensor([[0, 0, 1, 1]]), distance=1)
    tensor(0.4000, dtype=torch.float64)
    """
    if probabilities.dim() != targets.dim() + 1:
        raise ShapeMismatch(
            "need probabilities of classes (N, C, ...) and class indices (N, ...), got "
            f"{tuple(probabilities.shape)} and {tuple(targets.shape)}"
        )
    return error_of_bins(boundary_bins(probabilities, targets, distance, spacing, bins=bins, ignore_index=ignore_index))


BOUNDARY_ECE = Metric(
    "boundary_ece",
    "low",
    "ECE near edges",
    "The calibration error of the pixels within two pixels of an edge of the true mask, over all cases: 0 is perfect.",
)
