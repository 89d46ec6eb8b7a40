"""The AUC of classes and labels: how well the probability of a class separates its inputs from all others."""

import torch
from torch import Tensor

from leanbayes.likelihood import Likelihood
from leanbayes.metrics.histogram import log_cell
from leanbayes.metrics.metric import Accumulator, Findings, Metric
from leanbayes.metrics.quality import cells_of
from leanbayes.metrics.ranking import area_under_roc, one_against_rest
from leanbayes.prediction import Prediction

__all__ = ["ClassAuc"]

_ODDS_OCTAVES, _ODDS_PER_OCTAVE = 32, 64  # for p and 1 − p down to 2⁻³²: 64 kB a class


class ClassAuc(Accumulator):
    """Accumulates the AUC of each class against the rest, or of each label.

    The histograms are over log-odds, so that their cells are narrow near probability 0 and near probability 1.
    """

    def __init__(self, likelihood: Likelihood) -> None:
        self.ignore_index = likelihood.ignore_index
        self.counts: Tensor | None = None  # (classes, cells, 2)

    def add(self, prediction: Prediction, targets: Tensor) -> None:
        """Take in a batch."""
        cells = cells_of(prediction.mean, targets, self.ignore_index)
        scores, truth = one_against_rest(prediction.mean, targets, cells.counted, labels=cells.labels)
        half = _ODDS_OCTAVES * _ODDS_PER_OCTAVE
        low, high = (log_cell(p, _ODDS_OCTAVES, 0, _ODDS_PER_OCTAVE) for p in (scores, 1 - scores.double()))
        cell = torch.where(scores < 0.5, low, 2 * half - 1 - high)
        if self.counts is None:
            self.counts = torch.zeros(len(scores), 2 * half, 2, dtype=torch.int64, device=scores.device)
        rows = torch.arange(len(scores), device=cell.device)[:, None]
        index = ((rows * 2 * half + cell) * 2 + truth.long()).flatten()
        self.counts.view(-1).index_add_(0, index, torch.ones_like(index))

    def report(self, findings: Findings) -> None:
        """Write the mean AUC of all batches so far into ``findings``."""
        assert self.counts is not None
        known = (self.counts.sum(1) > 0).all(1)
        if not known.all():
            left_out = (~known).nonzero()[:, 0].tolist()
            names = ", ".join(map(str, left_out[:10])) + (", ..." if len(left_out) > 10 else "")
            findings.notes.append(
                f"auc: leaves out {len(left_out)} of {len(known)} classes ({names}): their targets are all alike"
            )
        if known.any():
            values, bounds = area_under_roc(self.counts[known])
            findings.put("auc", values.mean(), bounds.mean())


AUC = Metric(
    "auc",
    "high",
    "AUC",
    "How well the probabilities separate each class from all others: 1 is perfect, 0.5 is chance.",
    ClassAuc,
    ("classes", "labels"),
)
