"""How much masks must mark to miss little: the uncertainty of segmentations at equal risk.

Masks grow as the threshold on the probability falls. Every method gets the highest threshold at which its masks miss at
most 10 % of the true pixels on average over the images that are evaluated. What then differs is how much they mark.
This number compares methods; it promises nothing about new data, which `leanbayes.conformal.RiskControl` does.
"""

import torch
from torch import Tensor

from leanbayes.likelihood import Likelihood
from leanbayes.metrics.metric import Accumulator, Findings, Metric
from leanbayes.metrics.nested_masks import count_masks
from leanbayes.prediction import Prediction

__all__ = ["MarkedAtEqualRisk"]

MISSED = 0.1
_PIXELS = 2**20  # that are counted at a time


class MarkedAtEqualRisk(Accumulator):
    """Accumulates, at each threshold, the mean share of the truth that is missed and the mean share that is marked.

    A case without any true pixel misses nothing. Classes other than 0 are the foreground; of labels each one counts.
    """

    def __init__(self, likelihood: Likelihood) -> None:
        self.likelihood = likelihood
        self.cases = 0
        self.missed: Tensor | float = 0.0
        self.marked: Tensor | float = 0.0

    def add(self, prediction: Prediction, targets: Tensor) -> None:
        """Take in a batch, of which a part of the pixels is counted at a time, because a scan has many."""
        has_classes = prediction.mean.dim() > targets.dim()  # along the second axis; else one number for each target
        p = prediction.mean.flatten(2)[:, 0] if has_classes else prediction.mean.reshape(len(targets), -1)
        target = targets.reshape(len(targets), -1)
        width = max(1, _PIXELS // max(len(target), 1))
        right: Tensor | int = 0
        marked: Tensor | int = 0
        positives: Tensor | int = 0
        counted: Tensor | int = 0
        for scores, truth in zip(p.split(width, 1), target.split(width, 1), strict=True):
            counts = self.likelihood.counted(truth)
            scores = scores.double()
            masks = count_masks((1 - scores if has_classes else scores).clamp(0, 1), truth != 0, counts)
            right, marked = right + masks.right, marked + masks.right + masks.wrong
            positives, counted = positives + masks.positives, counted + counts.sum(1)
        assert isinstance(counted, Tensor)
        assert isinstance(positives, Tensor)
        lesion = positives[:, None].double()
        missed = torch.where(lesion > 0, 1 - right / lesion.clamp_min(1), 0.0)
        known = counted > 0
        self.missed = self.missed + missed[known].sum(0)
        self.marked = self.marked + (marked / counted[:, None].clamp_min(1).double())[known].sum(0)
        self.cases += int(known.sum())

    def report(self, findings: Findings) -> None:
        """Write the share into ``findings``, and how much less the next mask of the grid marks."""
        if not self.cases:
            findings.notes.append("marked_at_10: left out, because no target counts")
            return
        assert isinstance(self.missed, Tensor)
        assert isinstance(self.marked, Tensor)
        allowed = self.missed <= MISSED * self.cases * (1 + 1e-12)  # true at the lowest threshold, which marks all
        place = int(allowed.long().cumprod(0).sum()) - 1
        share, fewer = self.marked[place], self.marked[min(place + 1, len(self.marked) - 1)]
        findings.put("marked_at_10", share / self.cases, (share - fewer) / self.cases)


MARKED_AT_10 = Metric(
    "marked_at_10",
    "low",
    "Marked at 10 % missed",
    "The mean share of an image (or of its labels) that must be marked so that on average 10 % of the truth is missed: "
    "smaller masks say more.",
    MarkedAtEqualRisk,
    ("pixels", "labels"),
)
