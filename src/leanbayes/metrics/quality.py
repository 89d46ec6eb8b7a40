"""Metrics of how often, and how nearly, predictions are right: accuracy, NLL, Brier score, Dice and IoU.

Two shapes of input serve every kind of task. Classes of an image or of each pixel have probabilities (N, C, ...) and
class indices (N, ...), and targets that equal ``ignore_index`` do not count. Independent labels of an image or of each
pixel have probabilities of yes and targets 0 or 1, both (N, labels, ...). An image, a pixel, or one label of either
that is scored by itself is called a cell, and means are over cells.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from leanbayes.errors import InputError, NonFinite, ShapeMismatch

__all__ = ["Cells", "Overlap", "accuracy", "brier", "cells_of", "dice", "iou", "mean_iou", "nll", "overlap"]

IGNORE = -100  # the default of torch and of `Categorical`


def accuracy(probabilities: Tensor, targets: Tensor, *, ignore_index: int = IGNORE) -> Tensor:
    """Return the share of cells whose most probable class is the right one; a label is a choice between no and yes.

    >>> accuracy(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
    tensor(0.5000)
    """
    return _mean(cells_of(probabilities, targets, ignore_index, required=True).correct)


def nll(probabilities: Tensor, targets: Tensor, *, ignore_index: int = IGNORE) -> Tensor:
    """Return the mean of −log p(y) in nats. A probability of zero counts as the smallest number, so it is finite.

    Give the mean of the probabilities over draws to get the score of the predictive distribution.

    >>> nll(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    tensor(0.6931)
    """
    return _mean(cells_of(probabilities, targets, ignore_index, required=True).nll)


def brier(probabilities: Tensor, targets: Tensor, *, ignore_index: int = IGNORE) -> Tensor:
    """Return the Brier score: for classes the mean of Σ_c (δ_{c=y} − p_c)², from 0 to 2.

    Abboud et al. 2024 divide it by the number of classes besides. For labels it is the mean of (y − p)², from 0 to 1,
    as is usual for two outcomes.

    >>> brier(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    tensor(1.)
    """
    return _mean(cells_of(probabilities, targets, ignore_index, required=True).brier)


def dice(probabilities: Tensor, targets: Tensor, *, ignore_index: int = IGNORE) -> Tensor:
    """Return the foreground Dice 2|A∩B| / (|A|+|B|) of predicted and true pixels, averaged over images and classes.

    Class 0 is the background and does not count; each of several labels, (N, labels, ...), is a foreground. If neither
    prediction nor truth has a pixel of a class, its Dice is 1. Images in which every pixel is ignored are left out.
    (The public code of Abboud et al. 2024 counts background pixels, so that an empty mask scores 0.99.)

    >>> truth = torch.tensor([[[0, 1, 1]]])
    >>> dice(torch.tensor([[[[0.9, 0.2, 0.7]], [[0.1, 0.8, 0.3]]]]), truth)
    tensor(0.6667)
    """
    scores = overlap(probabilities, targets, ignore_index=ignore_index).dice()
    if not len(scores):
        raise InputError("there are no examples to measure")
    return scores.mean().to(_wide(probabilities).dtype)


def iou(probabilities: Tensor, targets: Tensor, *, ignore_index: int = IGNORE) -> Tensor:
    """Return |A∩B| / |A∪B| for each class or label over the pixels of all images; NaN where neither has a pixel.

    >>> iou(torch.tensor([[[0.9, 0.2, 0.7], [0.1, 0.8, 0.3]]]), torch.tensor([[0, 1, 1]]))
    tensor([0.5000, 0.5000])
    """
    areas = overlap(probabilities, targets, ignore_index=ignore_index)
    if not bool(areas.counted.any()):
        raise InputError("there are no examples to measure")
    return areas.iou().to(_wide(probabilities).dtype)


def mean_iou(probabilities: Tensor, targets: Tensor, *, ignore_index: int = IGNORE) -> Tensor:
    """Return the mean of `iou` over the classes that occur in prediction or truth, with the background.

    >>> mean_iou(torch.tensor([[[0.9, 0.2, 0.7], [0.1, 0.8, 0.3]]]), torch.tensor([[0, 1, 1]]))
    tensor(0.5000)
    """
    return iou(probabilities, targets, ignore_index=ignore_index).nanmean()


@dataclass(frozen=True)
class Cells:
    """The cells that count. A label is a cell with two classes, no and yes.

    Attributes:
        probabilities: (n, C).
        targets: the true classes, (n).
        counted: which of the given targets these cells are.
        labels: whether the cells are labels.
    """

    probabilities: Tensor
    targets: Tensor
    counted: Tensor
    labels: bool

    @cached_property
    def predicted(self) -> Tensor:
        """The most probable class."""
        return self.probabilities.argmax(1)

    @cached_property
    def confidence(self) -> Tensor:
        """The probability of the most probable class."""
        return self.probabilities.amax(1)

    @cached_property
    def doubt(self) -> Tensor:
        """1 − confidence, as the sum of all other probabilities: it keeps its digits where confidence rounds to 1."""
        return self.probabilities.scatter(1, self.predicted[:, None], 0).sum(1)

    @cached_property
    def correct(self) -> Tensor:
        """1 where the most probable class is the right one, else 0."""
        return (self.predicted == self.targets).to(self.probabilities.dtype)

    @cached_property
    def nll(self) -> Tensor:
        """−log p(y)."""
        chosen = self.probabilities.gather(1, self.targets[:, None]).squeeze(1)
        return -chosen.clamp_min(torch.finfo(chosen.dtype).tiny).log()

    @cached_property
    def brier(self) -> Tensor:
        """Σ_c (δ_{c=y} − p_c)²; for labels (y − p)²."""
        chosen = self.probabilities.gather(1, self.targets[:, None])
        others = self.probabilities.scatter(1, self.targets[:, None], 0)
        squares = (1 - chosen).squeeze(1).square() + others.square().sum(1)
        return squares / 2 if self.labels else squares


def cells_of(probabilities: Tensor, targets: Tensor, ignore_index: int = IGNORE, *, required: bool = False) -> Cells:
    """Check predictions and targets of any kind, and return their cells; ``required`` asks for at least one."""
    labels = _check(probabilities, targets)
    p = _wide(probabilities)
    if not torch.isfinite(p).all():
        raise NonFinite("the probabilities have NaN or infinite values; check the model that made them")
    if p.numel() and (p.min() < 0 or p.max() > 1):
        raise InputError(
            f"probabilities must lie from 0 to 1, got {p.min():.4g} to {p.max():.4g}; for logits use predict()"
        )
    counted = torch.ones_like(targets, dtype=torch.bool) if labels else not_ignored(targets, ignore_index)
    if required and not counted.any():
        raise InputError("there are no examples to measure")
    y = targets[counted].long()
    if labels:
        if not ((targets == 0) | (targets == 1)).all():
            raise InputError("labels must be 0 or 1, got other values")
        yes = p.flatten()
        return Cells(torch.stack([1 - yes, yes], dim=1), y, counted, labels)
    p = p.movedim(1, -1)[counted]
    if len(p) and (p.sum(1) - 1).abs().max() > 0.01:
        raise InputError(
            "the probabilities of the classes do not sum to 1; if they are labels, the targets need the same shape"
        )
    if len(y) and not (int(y.min()) >= 0 and int(y.max()) < p.shape[1]):
        raise InputError(
            f"targets must be classes 0 to {p.shape[1] - 1} or ignore_index={ignore_index}, "
            f"got {int(y.min())} to {int(y.max())}"
        )
    return Cells(p, y, counted, labels)


def not_ignored(targets: Tensor, ignore_index: int) -> Tensor:
    """Return which targets count. The comparison is in 64 bits, because −100 as a byte is the class 156."""
    return targets.long() != ignore_index


@dataclass(frozen=True)
class Overlap:
    """The numbers of pixels of each image and class.

    Attributes:
        both: the pixels that are in both masks, (N, C).
        predicted: the pixels of the predicted mask, (N, C).
        true: the pixels of the true mask, (N, C).
        counted: which images have pixels that count, (N).
        labels: whether the classes are labels, so that there is no background.
    """

    both: Tensor
    predicted: Tensor
    true: Tensor
    counted: Tensor
    labels: bool

    def dice(self) -> Tensor:
        """Return the foreground Dice of each image that has pixels that count."""
        first = 0 if self.labels else 1
        both, sizes = self.both[:, first:].double(), (self.predicted + self.true)[:, first:].double()
        scores = torch.where(sizes > 0, 2 * both / sizes.clamp_min(1), 1.0)
        return scores[self.counted].mean(1)

    def iou(self) -> Tensor:
        """Return the IoU of each class over all images; NaN where there is no pixel."""
        both, union = self.both.sum(0).double(), (self.predicted + self.true - self.both).sum(0).double()
        return torch.where(union > 0, both / union, torch.nan)


def overlap(probabilities: Tensor, targets: Tensor, *, ignore_index: int = IGNORE) -> Overlap:
    """Count the pixels of each image and class in the predicted mask, in the true one, and in both."""
    cells = cells_of(probabilities, targets, ignore_index)
    if targets.dim() < (3 if cells.labels else 2):
        raise ShapeMismatch(
            "overlap needs pixels: targets (N, ...) of classes or (N, labels, ...) of labels, "
            f"got {tuple(targets.shape)}"
        )
    counted = cells.counted.flatten(1)
    if cells.labels:
        truth, predicted = targets.bool().flatten(2), probabilities.flatten(2) > 0.5
        masks = [(truth[:, c], predicted[:, c]) for c in range(targets.shape[1])]
    else:
        if probabilities.shape[1] < 2:
            raise ShapeMismatch("overlap needs a background and at least one more class; for one mask use Bernoulli()")
        indices, chosen = targets.flatten(1), probabilities.argmax(1).flatten(1)
        masks = [((indices == c) & counted, (chosen == c) & counted) for c in range(probabilities.shape[1])]
    both = torch.stack([(truth & mask).sum(1) for truth, mask in masks], dim=1)
    predicted_size = torch.stack([mask.sum(1) for _, mask in masks], dim=1)
    true_size = torch.stack([truth.sum(1) for truth, _ in masks], dim=1)
    return Overlap(both, predicted_size, true_size, counted.any(1), cells.labels)


def _check(probabilities: Tensor, targets: Tensor) -> bool:
    """Check the shapes and types, and return whether these are labels rather than classes."""
    if not probabilities.is_floating_point():
        raise InputError(f"probabilities must be floating-point numbers, got {probabilities.dtype}")
    if probabilities.dim() and probabilities.shape == targets.shape:
        return True
    if probabilities.dim() < 2 or targets.shape != (probabilities.shape[0], *probabilities.shape[2:]):
        raise ShapeMismatch(
            "need probabilities (N, C, ...) and targets (N, ...) for classes, or both of one shape for labels, "
            f"got {tuple(probabilities.shape)} and {tuple(targets.shape)}"
        )
    if targets.is_floating_point():
        raise ShapeMismatch(f"class indices must be integers, got targets of {targets.dtype}")
    return False


def _mean(values: Tensor) -> Tensor:
    return (values.sum(dtype=torch.float64) / len(values)).to(values.dtype)


def _wide(values: Tensor) -> Tensor:
    """Return half precision as float32, in which it is scored."""
    return values.float() if values.dtype.itemsize < 4 else values
