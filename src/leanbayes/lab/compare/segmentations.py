"""Scores of one segmentation: overlap, distance of the edges, volume, agreement of draws, and of several raters."""

import math
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leanbayes.lab.compare.doubt import edge_width
from leanbayes.lab.compare.lesions import count_lesions
from leanbayes.metrics.boundary import boundary_bins
from leanbayes.metrics.ranking import auroc
from leanbayes.metrics.raters import generalised_energy_distance, rater_agreement

__all__ = ["Segmentations", "dice_of_masks", "drawn_classes", "hausdorff95", "pairwise_dice"]

Mask = NDArray[np.bool_]
_MOST_CLASSES_OF_LESIONS = 5  # with the background
_LEVEL = 0.9  # of the interval of a volume over draws
_MILLILITRES = 1e-3  # in a cubic millimetre


class Segmentations:
    """Scores segmentations of one data set.

    Args:
        classes: how many classes there are, with the background, which is class 0.
        spacing: the distance of two voxels along each axis in millimetres; None for pictures, whose unit is a pixel.
        ignore: the value of pixels that do not count.
    """

    def __init__(self, classes: int, spacing: tuple[float, ...] | None, ignore: int) -> None:
        self.classes, self.spacing, self.ignore = classes, spacing, ignore

    def scores(
        self, predicted: Tensor, total: Tensor, truth: Tensor, draws: Tensor | None, raters: Tensor | None
    ) -> dict[str, float]:
        """Return the scores of one case by name.

        Args:
            predicted: the predicted classes.
            total: the total uncertainty of each pixel.
            truth: the true classes.
            draws: the classes that each draw predicts, (draws, ...); None if they were not kept.
            raters: the classes by each rater, (raters, ...); None if there is one rater only.
        """
        counted = truth != self.ignore
        predicted = predicted.where(counted, 0)
        truth = truth.where(counted, 0)
        unit = 1.0 if self.spacing is None else math.prod(self.spacing) * _MILLILITRES
        size, true_size = (float((mask > 0).sum()) * unit for mask in (predicted, truth))
        scores = {
            "dice": float(dice_of_masks(predicted[None], truth[None], self.classes)),
            "volume": size,
            "true_volume": true_size,
            "volume_error": size - true_size,
        }
        scores["hd95"] = hausdorff95(predicted, truth, self.classes, self.spacing or (1.0,) * truth.dim())
        wrong = predicted[counted] != truth[counted]
        if bool(wrong.any()) and not bool(wrong.all()):
            scores["error_auroc"] = float(auroc(total[counted][~wrong].double(), total[counted][wrong].double()))
        if self.counts_lesions:
            lesions = count_lesions(predicted, truth, self.classes)
            scores |= {"lesions": lesions.true, "lesions_found": lesions.found, "lesions_false": lesions.false}
        if draws is not None and len(draws) > 1:
            drawn = draws.where(counted, 0)
            sizes = (drawn > 0).flatten(1).sum(1).double() * unit
            ends = torch.tensor([(1 - _LEVEL) / 2, (1 + _LEVEL) / 2], dtype=sizes.dtype, device=sizes.device)
            low, high = sizes.quantile(ends).tolist()
            scores |= {"volume_low": low, "volume_high": high}
            scores["draw_disagreement"] = 1 - pairwise_dice(drawn, self.classes)
        if raters is not None and len(raters) > 1:
            scores |= self._rated(predicted, total, draws, raters.long().to(total.device))
        return scores

    @property
    def counts_lesions(self) -> bool:
        """Whether connected components are lesions. Of many classes, as in a street, they are objects of all sorts."""
        return self.classes <= _MOST_CLASSES_OF_LESIONS

    def near_edges(self, probabilities: Tensor, truth: Tensor) -> Tensor:
        """Return the sums over bins of confidence of the pixels near the true edges of one case, (bins, 3).

        Args:
            probabilities: the mean probabilities of the classes, (C, ...).
            truth: the true classes.
        """
        width = edge_width(self.spacing)
        return boundary_bins(probabilities[None], truth[None], width, self.spacing, ignore_index=self.ignore)

    def _rated(self, predicted: Tensor, total: Tensor, draws: Tensor | None, raters: Tensor) -> dict[str, float]:
        scores = {
            "raters": float(len(raters)),
            "dice_of_raters": float(dice_of_masks(predicted.expand_as(raters), raters, self.classes).mean()),
            "rater_dice": pairwise_dice(raters, self.classes),
            "entropy_correlation": float(rater_agreement(total[None], raters[:, None], self.classes)),
        }
        if draws is not None:
            scores["ged"] = float(generalised_energy_distance(draws[:, None], raters[:, None], self.classes))
        return scores


def drawn_classes(samples: Tensor | None) -> Tensor | None:
    """Return the classes (draws, ...) that draws of probabilities (draws, C, ...) predict for one case.

    A network without random weights repeats itself to the last bit. Its draws are one, or else they would agree about
    every case, and the interval of a volume would have no width.
    """
    if samples is None:
        return None
    return (samples[:1] if bool((samples == samples[:1]).all()) else samples).argmax(1)


def dice_of_masks(a: Tensor, b: Tensor, classes: int) -> Tensor:
    """Return the Dice of each pair of masks (N, ...), averaged over the foreground classes.

    A class that neither mask has counts as 1, as in `leanbayes.metrics.dice`.

    >>> dice_of_masks(torch.tensor([[0, 1, 1]]), torch.tensor([[0, 0, 1]]), 2)
    tensor([0.6667], dtype=torch.float64)
    """
    a, b = a.flatten(1), b.flatten(1)
    scores = torch.zeros(len(a), dtype=torch.float64, device=a.device)
    for label in range(1, classes):
        of_a, of_b = a == label, b == label
        sizes = of_a.sum(1) + of_b.sum(1)
        scores += torch.where(sizes > 0, 2 * (of_a & of_b).sum(1).double() / sizes.clamp_min(1), 1.0)
    return scores / (classes - 1)


def pairwise_dice(masks: Tensor, classes: int) -> float:
    """Return the mean Dice over all pairs of masks (draws, ...), which is low where draws disagree about a case.

    >>> pairwise_dice(torch.tensor([[0, 1], [0, 1], [1, 0]]), 2)
    0.3333333333333333
    """
    different, counts = masks.flatten(1).unique(dim=0, return_counts=True)
    same = float((counts * (counts - 1)).sum()) / 2
    pairs = list(combinations(range(len(different)), 2))
    total = len(masks) * (len(masks) - 1) / 2
    if pairs:
        first, second = (torch.tensor(rows, device=masks.device) for rows in zip(*pairs, strict=True))
        scores = torch.stack([dice_of_masks(different[a, None], different[b, None], classes)[0] for a, b in pairs])
        same += float((scores * counts[first] * counts[second]).sum())
    return same / total


def hausdorff95(a: Tensor, b: Tensor, classes: int, spacing: tuple[float, ...]) -> float:
    """Return the 95th percentile of the distance between the edges of two masks, in the unit of the spacing.

    It is the number that MONAI's ``compute_hausdorff_distance`` gives: for each edge pixel of one mask the distance to
    the nearest edge pixel of the other, the 95th percentile of these, and the larger one of the two directions. The
    mean over the foreground classes that both masks have is returned. It is 0 if neither mask has any foreground, where
    MONAI gives NaN, and NaN if no class is in both.
    """
    # Why not MONAI's function itself: pictures need no MONAI, and its import takes seconds. A test compares the two.
    if not bool((a > 0).any()) and not bool((b > 0).any()):
        return 0.0
    distances = []
    for label in range(1, classes):
        of_a, of_b = (np.asarray((mask == label).to("cpu")) for mask in (a, b))  # scipy works in main memory
        if of_a.any() and of_b.any():
            distances.append(_percentile_of_distance(of_a, of_b, spacing))
    return sum(distances) / len(distances) if distances else math.nan


def _percentile_of_distance(a: Mask, b: Mask, spacing: tuple[float, ...]) -> float:
    from scipy import ndimage  # slow to import

    edges = [mask & ~ndimage.binary_erosion(mask) for mask in (a, b)]
    ways = ((edges[0], edges[1]), (edges[1], edges[0]))
    far = [ndimage.distance_transform_edt(~other, sampling=spacing)[edge] for edge, other in ways]
    return float(max(np.percentile(distance, 95) for distance in far))
