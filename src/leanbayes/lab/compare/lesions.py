"""Detection of lesions: how many connected structures of the true mask are found, and how many are made up.

A Dice over pixels hardly notices a small lesion that was missed. Here every connected component of the foreground
counts alike, however small it is.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from leanbayes.errors import InputError, ShapeMismatch

__all__ = ["Lesions", "count_lesions"]

_OVERLAP = 0.1  # the IoU above which a lesion counts as found


@dataclass(frozen=True)
class Lesions:
    """The lesions of one case, or of several.

    Attributes:
        true: how many components the true mask has.
        found: how many of them a component of the prediction matches.
        false: how many components of the prediction match none: the false positives.
    """

    true: int
    found: int
    false: int

    def __add__(self, other: "Lesions") -> "Lesions":
        return Lesions(self.true + other.true, self.found + other.found, self.false + other.false)


def count_lesions(predicted: Tensor, truth: Tensor, classes: int = 2, overlap: float = _OVERLAP) -> Lesions:
    """Count the lesions of one case that are found, missed and made up.

    A lesion is a connected component of a foreground class; pixels that touch at a corner are connected. A true and a
    predicted component match if their IoU is above ``overlap``. Each component matches at most one other, and of all
    ways to match them, one with the largest summed IoU is taken.

    Args:
        predicted: the predicted classes, (H, W) or (D, H, W).
        truth: the true classes.
        classes: how many classes there are, with the background, which is class 0.
        overlap: the IoU above which two components match.

    >>> count_lesions(torch.tensor([[1, 1, 0, 0, 1]]), torch.tensor([[1, 0, 0, 1, 0]]))
    Lesions(true=2, found=1, false=1)
    """
    if predicted.shape != truth.shape or predicted.dim() < 1:
        raise ShapeMismatch(f"need two masks of one shape, got {tuple(predicted.shape)} and {tuple(truth.shape)}")
    if not 0 <= overlap < 1:
        raise InputError(f"overlap must be at least 0 and below 1, got {overlap}")
    from scipy import ndimage  # slow to import
    from scipy.optimize import linear_sum_assignment

    all_lesions = Lesions(0, 0, 0)
    around = np.ones((3,) * predicted.dim())
    for label in range(1, classes):
        masks = (np.asarray((mask == label).to("cpu")) for mask in (predicted, truth))  # scipy works in main memory
        (of_prediction, made), (of_truth, true) = (ndimage.label(mask, around) for mask in masks)
        shared = np.zeros((true + 1, made + 1))
        np.add.at(shared, (of_truth.ravel(), of_prediction.ravel()), 1)
        both = shared[1:, 1:]
        union = shared.sum(1)[1:, None] + shared.sum(0)[None, 1:] - both
        iou = both / np.maximum(union, 1)
        rows, columns = linear_sum_assignment(np.where(iou > overlap, iou, 0), maximize=True)
        found = int((iou[rows, columns] > overlap).sum())
        all_lesions += Lesions(true, found, made - found)
    return all_lesions
