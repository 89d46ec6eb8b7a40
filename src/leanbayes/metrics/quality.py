"""How often, and how nearly, predictions are right: accuracy, NLL, Brier, Dice and IoU.

Two shapes of input serve every kind of task. Classes, of an image or of each pixel: probabilities (N, C, ...) and
class indices (N, ...), of which ``ignore_index`` does not count. Independent labels, also for each pixel:
probabilities of yes and targets 0 or 1, both (N, labels, ...). What is scored one by one, an image, a pixel or one
label of either, is called a cell; means are over cells.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from leanbayes.errors import InputError, NonFinite, ShapeMismatch

__all__ = ["Cells", "Overlap", "accuracy", "brier", "cells_of", "dice", "iou", "mean_iou", "nll", "overlap"]

IGNORE = -100  # as in torch and `Categorical`


def accuracy(probabilities: Tensor, targets: Tensor, *, ignore_index: int = IGNORE) -> Tensor:
    """The share of cells whose most probable class is the right one; a label is a choice between no and yes.

    >>> accuracy(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
    tensor(0.5000)
    """
    return _mean(cells_of(probabilities, targets, ignore_index, some=True).correct)


def nll(probabilities: Tensor, targets: Tensor, *, ignore_index: int = IGNORE) -> Tensor:
    """Mean of −log p(y) in nats. A probability of zero counts as the smallest number, so the mean is finite.

    Give it the mean of the probabilities over draws: the score is that of the predictive distribution.

    >>> nll(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    tensor(0.6931)
    """
    return _mean(cells_of(probabilities, targets, ignore_index, some=True).nll)


def brier(probabilities: Tensor, targets: Tensor, *, ignore_index: int = IGNORE) -> Tensor:
    """Classes: mean of Σ_c (δ_{c=y} − p_c)², from 0 to 2 (000 and 001; theirs is divided by C besides).

    Labels: mean of (y − p)², from 0 to 1, as is usual for two outcomes.

    >>> brier(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    tensor(1.)
    """
    return _mean(cells_of(probabilities, targets, ignore_index, some=True).brier)


def dice(probabilities: Tensor, targets: Tensor, *, ignore_index: int = IGNORE) -> Tensor:
    """Foreground Dice 2|A∩B| / (|A|+|B|) of predicted and true pixels, the mean over images and foreground classes.

    Class 0 is the background and does not count; of labels, (N, labels, ...), each is a foreground.
    Where neither has a pixel, Dice is 1. (000's public code counts background pixels, so that an empty mask scores
    0.99.) Images in which every pixel is ignored are left out.

    >>> truth = torch.tensor([[[0, 1, 1]]])
    >>> dice(torch.tensor([[[[0.9, 0.2, 0.7]], [[0.1, 0.8, 0.3]]]]), truth)
    tensor(0.6667)
    """
    found = overlap(probabilities, targets, ignore_index=ignore_index)
    scores = found.dice()
    if not len(scores):
        raise InputError("there are no examples to measure")
    return scores.mean().to(_wide(probabilities).dtype)


def iou(probabilities: Tensor, targets: Tensor, *, ignore_index: int = IGNORE) -> Tensor:
    """|A∩B| / |A∪B| for each class (or label), pixels of all images taken together; NaN where neither has a pixel.

    >>> iou(torch.tensor([[[0.9, 0.2, 0.7], [0.1, 0.8, 0.3]]]), torch.tensor([[0, 1, 1]]))
    tensor([0.5000, 0.5000])
    """
    found = overlap(probabilities, targets, ignore_index=ignore_index)
    if not bool(found.counted.any()):
        raise InputError("there are no examples to measure")
    return found.iou().to(_wide(probabilities).dtype)


def mean_iou(probabilities: Tensor, targets: Tensor, *, ignore_index: int = IGNORE) -> Tensor:
    """The mean of `iou` over the classes that occur in the prediction or in the truth, the background among them.

    >>> mean_iou(torch.tensor([[[0.9, 0.2, 0.7], [0.1, 0.8, 0.3]]]), torch.tensor([[0, 1, 1]]))
    tensor(0.5000)
    """
    return iou(probabilities, targets, ignore_index=ignore_index).nanmean()


@dataclass(frozen=True)
class Cells:
    """What is scored one by one: probabilities (n, C) and classes (n), of the cells that count.

    A label is a cell with two classes, no and yes. ``counted`` says which targets these cells are.
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
        """1 − confidence, as the sum of all other probabilities: where confidence rounds to 1 it keeps its digits."""
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
        rest = self.probabilities.scatter(1, self.targets[:, None], 0)
        squares = (1 - chosen).squeeze(1).square() + rest.square().sum(1)
        return squares / 2 if self.labels else squares


def cells_of(probabilities: Tensor, targets: Tensor, ignore_index: int = IGNORE, *, some: bool = False) -> Cells:
    """The cells of predictions and targets of any kind, checked; ``some`` asks for at least one."""
    labels = _check(probabilities, targets)
    p = _wide(probabilities)
    if not torch.isfinite(p).all():
        raise NonFinite("the probabilities have NaN or infinite values; check the model that made them")
    if p.numel() and (p.min() < 0 or p.max() > 1):
        raise InputError(f"probabilities lie from 0 to 1, got {p.min():.4g} to {p.max():.4g}; logits? Use predict()")
    counted = torch.ones_like(targets, dtype=torch.bool) if labels else not_ignored(targets, ignore_index)
    if some and not counted.any():
        raise InputError("there are no examples to measure")
    y = targets[counted].long()
    if labels:
        if not ((targets == 0) | (targets == 1)).all():
            raise InputError("labels must be 0 or 1, got others")
        yes = p.flatten()
        return Cells(torch.stack([1 - yes, yes], dim=1), y, counted, labels)
    p = p.movedim(1, -1)[counted]
    if len(p) and (p.sum(1) - 1).abs().max() > 0.01:
        raise InputError(
            "the probabilities of the classes do not sum to 1; independent labels need targets of their shape"
        )
    if len(y) and not (int(y.min()) >= 0 and int(y.max()) < p.shape[1]):
        raise InputError(
            f"targets must be classes 0 to {p.shape[1] - 1} or ignore_index={ignore_index}, "
            f"got {int(y.min())} to {int(y.max())}"
        )
    return Cells(p, y, counted, labels)


def not_ignored(targets: Tensor, ignore_index: int) -> Tensor:
    """Which targets count. In 64 bits, for as a byte −100 would be the class 156."""
    return targets.long() != ignore_index


@dataclass(frozen=True)
class Overlap:
    """Pixels of each image and class, each (N, C): in both masks, predicted, true. ``labels``: no background."""

    both: Tensor
    predicted: Tensor
    true: Tensor
    counted: Tensor
    labels: bool

    def dice(self) -> Tensor:
        """Foreground Dice of each image that has pixels that count."""
        first = 0 if self.labels else 1
        both, sizes = self.both[:, first:].double(), (self.predicted + self.true)[:, first:].double()
        scores = torch.where(sizes > 0, 2 * both / sizes.clamp_min(1), 1.0)
        return scores[self.counted].mean(1)

    def iou(self) -> Tensor:
        """IoU of each class over all images; NaN where there is no pixel."""
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
    """Whether these are labels rather than classes."""
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
    """Half precision is scored in float32."""
    return values.float() if values.dtype.itemsize < 4 else values
