"""Doubt: one number for a case that should be large where its segmentation is bad. It never looks at the truth.

No score is best for every method and every kind of scan: a mean over all pixels grows with the size of a structure, and
draws are not there for every method. Therefore the validation cases decide which score a comparison reports for a
method, and the test cases only measure what that score is worth.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leanbayes.lab.statistics import spearman
from leanbayes.metrics.boundary import edge_band

__all__ = ["DOUBTS", "chosen_doubt", "doubt_scores", "edge_width", "expected_dice_loss", "quality_of", "tells_apart"]

Row = Mapping[str, Any]

DOUBTS = {
    "draw_disagreement": "1 - the mean Dice over all pairs of draws",
    "expected_dice_loss": "1 - the Dice that the probabilities themselves expect",
    "edge_total": "the mean total uncertainty near the predicted edge",
    "edge_epistemic": "the mean epistemic uncertainty near the predicted edge",
    "total": "the mean total uncertainty of all pixels",
    "epistemic": "the mean epistemic uncertainty of all pixels",
}
"""The scores of doubt by the names of their columns. Without enough validation cases, the first one there is taken."""

_FEWEST = 10  # validation cases, below which they decide nothing
_ROUNDING = 1e-6  # numbers that differ by less are equal
_WIDTH = 2.0  # pixels on either side of an edge


def edge_width(spacing: Sequence[float] | None) -> float:
    """Return the width of the band around an edge: two pixels, or twice the smallest spacing in millimetres."""
    return _WIDTH * (1.0 if spacing is None else min(spacing))


def doubt_scores(
    probabilities: Tensor, total: Tensor, epistemic: Tensor, spacing: Sequence[float] | None = None
) -> dict[str, float]:
    """Return the scores of doubt about one case that need no draws.

    Where nothing is predicted there is no edge, and the largest uncertainty of any pixel stands for the mean near it.

    Args:
        probabilities: the mean probabilities of the classes, (C, ...).
        total: the total uncertainty of each pixel.
        epistemic: the epistemic uncertainty of each pixel.
        spacing: the distance of two pixels along each axis; by default 1.
    """
    predicted = probabilities.argmax(0)
    scores = {"expected_dice_loss": expected_dice_loss(probabilities)}
    band = edge_band(predicted[None], edge_width(spacing), spacing)[0]
    for name, values in (("edge_total", total), ("edge_epistemic", epistemic)):
        scores[name] = float(values[band].double().mean() if bool(band.any()) else values.max())
    return scores


def expected_dice_loss(probabilities: Tensor) -> float:
    """Return 1 − the Dice that the probabilities (C, ...) themselves expect of the mask that they predict.

    For the predicted mask m of a foreground class, it is 2 Σ p m / (Σ p + Σ m), which is the ratio of the expectations
    of numerator and denominator. Where a class is predicted nowhere, the Dice is 1 if it is nowhere in truth either,
    whose probability is Π (1 - p) if pixels are independent. The mean over the foreground classes is returned.
    """
    predicted, p = probabilities.argmax(0), probabilities.double()
    losses = []
    for label in range(1, len(p)):
        mask = predicted == label
        if bool(mask.any()):
            losses.append(1 - 2 * p[label][mask].sum() / (p[label].sum() + mask.sum()))
        else:
            losses.append(1 - torch.log1p(-p[label].clamp(max=1 - 1e-12)).sum().exp())
    return float(torch.stack(losses).mean()) if losses else 0.0


def quality_of(row: Row) -> float:
    """Return how good the segmentation of a case is: its Dice or, with several raters, the mean of its Dice with each.

    The Dice with one random rater is a lottery where raters disagree, which no score of doubt can foretell.
    """
    return float(row.get("dice_of_raters", row["dice"]))


def tells_apart(pairs: NDArray[Any]) -> bool:
    """Return whether two columns of numbers order the cases by more than rounding errors.

    The epistemic uncertainty of a network without random weights is about 1e-8 nats: an order of rounding errors.
    """
    return bool(np.isfinite(pairs).all() and (np.ptp(pairs, axis=0) > _ROUNDING).all())


def chosen_doubt(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Return the score of doubt that ranks the Dice of these validation cases best; None if they are too few.

    Args:
        rows: the scores of each validation case, as `CaseScores` has them.

    Returns:
        The name of the score, its rank correlation with Dice on these cases, and how many they are.
    """
    ranks = {}
    for name in DOUBTS:
        pairs = np.array([(quality_of(row), row[name]) for row in rows if "dice" in row and name in row])
        if len(pairs) == len(rows) >= _FEWEST and tells_apart(pairs):
            ranks[name] = spearman(pairs[:, 1], pairs[:, 0]).rho
    if not ranks:
        return None
    best = min(ranks, key=ranks.__getitem__)
    return {"name": best, "rank_correlation": ranks[best], "cases": len(rows)}
