"""The metrics of segmentations: how well the predicted areas overlap the true ones."""

import math

from torch import Tensor

from leanbayes.likelihood import Likelihood
from leanbayes.metrics.metric import Accumulator, Findings, Metric
from leanbayes.metrics.quality import overlap
from leanbayes.prediction import Prediction

__all__ = ["Masks"]

KINDS = ("pixels",)


class Masks(Accumulator):
    """Accumulates the foreground Dice of each image, and the IoU of each class over all images."""

    def __init__(self, likelihood: Likelihood) -> None:
        self.ignore_index = likelihood.ignore_index
        self.dice: Tensor | float = 0.0
        self.images = 0
        self.both: Tensor | int = 0
        self.union: Tensor | int = 0

    def add(self, prediction: Prediction, targets: Tensor) -> None:
        """Take in a batch."""
        areas = overlap(prediction.mean, targets, ignore_index=self.ignore_index)
        scores = areas.dice()
        self.dice, self.images = self.dice + scores.sum(), self.images + len(scores)
        self.both = self.both + areas.both.sum(0)
        self.union = self.union + (areas.predicted + areas.true - areas.both).sum(0)

    def report(self, findings: Findings) -> None:
        """Write the metrics of all batches so far into ``findings``."""
        assert isinstance(self.both, Tensor)
        assert isinstance(self.union, Tensor)
        findings.put("dice", self.dice / self.images)
        shares = (self.both.double() / self.union).tolist()
        for label, share in enumerate(shares):
            if math.isnan(share):
                findings.notes.append(
                    f"iou/{label}: left out, because the class is neither predicted nor true anywhere"
                )
            else:
                findings.put(f"iou/{label}", share)
        findings.put("miou", math.fsum(s for s in shares if s == s) / sum(s == s for s in shares))


DICE = Metric(
    "dice",
    "high",
    "Dice",
    "The overlap of the predicted and the true foreground, averaged over images: 1 is perfect.",
    Masks,
    KINDS,
)
IOU = Metric(
    "iou",
    "high",
    "IoU",
    "The area that prediction and truth share, divided by the area that either covers: 1 is perfect.",
    Masks,
    KINDS,
)
MEAN_IOU = Metric(
    "miou", "high", "Mean IoU", "The IoU of each class, averaged over the classes: 1 is perfect.", Masks, KINDS
)
