"""Histograms with a fixed number of cells, from which metrics that rank inputs are computed in bounded memory.

Metrics that rank inputs, and bins of equal mass, need all scores in order. A histogram keeps counts in narrow cells
instead. The formulas are those for all inputs at once, and treat the scores within a cell as tied. The histogram gives
a bound of the error that this can make; where no two different scores share a cell, there is no error at all.
"""

import torch
from torch import Tensor

from leanbayes.metrics.metric import Findings
from leanbayes.metrics.ranking import area_under_precision_recall, area_under_roc, false_positives

__all__ = ["CELL_WIDTH", "Histogram", "detection", "log_cell"]

_OCTAVES, _PER_OCTAVE = 64, 1024  # cells from 2⁻⁶⁴ to 2⁶⁴, each 0.1 % wide: 1 MB a column

CELL_WIDTH = 1 / _PER_OCTAVE
"""The largest width of a cell, as a share of its score."""


class Histogram:
    """Sums of columns over cells of a score ≥ 0. The cells are log-spaced: each is at most 2⁻¹⁰ of its score wide.

    >>> histogram = Histogram(1)
    >>> histogram.add(torch.tensor([0.5, 0.5, 2.0]), torch.ones(3, 1))
    >>> histogram.table[histogram.table[:, 0] > 0].T
    tensor([[2., 1.]], dtype=torch.float64)
    """

    def __init__(self, columns: int) -> None:
        self.table = torch.zeros(2 * _OCTAVES * _PER_OCTAVE, columns, dtype=torch.float64)

    def add(self, scores: Tensor, columns: Tensor) -> None:
        """Add rows of shape (n, columns) at their n scores."""
        self.table = self.table.to(scores.device)
        self.table.index_add_(0, log_cell(scores, _OCTAVES, _OCTAVES, _PER_OCTAVE), columns.double())

    def count(self, scores: Tensor) -> None:
        """Add 1 at each score; for a histogram of one column."""
        self.add(scores, torch.ones(len(scores), 1, device=scores.device))

    def __len__(self) -> int:
        return int(self.table[:, 0].sum())


def detection(findings: Findings, prefix: str, negatives: Tensor, positives: Tensor, missing: tuple[str, str]) -> None:
    """Report AUROC, AUPR and FPR95 from counts in the cells of one histogram.

    Args:
        findings: receives the metrics, or a note where one side has no inputs.
        prefix: stands before the names of the metrics.
        negatives: the counts of inputs that should score low.
        positives: the counts of inputs that should score high.
        missing: the words for a note when there are no negatives, and when there are no positives.
    """
    for side, reason in zip((negatives, positives), missing, strict=True):
        if not side.any():
            findings.notes.append(f"{prefix}/auroc, aupr, fpr95: left out, because {reason}")
            return
    table = torch.stack([negatives, positives.to(negatives.device)], dim=-1)
    findings.put(f"{prefix}/auroc", *area_under_roc(table))
    findings.put(f"{prefix}/aupr", *area_under_precision_recall(table))
    findings.put(f"{prefix}/fpr95", *false_positives(table))


def log_cell(scores: Tensor, below: int, above: int, per_octave: int) -> Tensor:
    """Return the cell of each score: ``per_octave`` to a doubling, from 2^−below to 2^above; others join the ends."""
    mantissa, exponent = torch.frexp(scores.double().clamp(2.0**-below, 2.0**above * (1 - 2**-50)))
    within = ((2 * mantissa - 1) * per_octave).long()  # mantissa is in [½, 1)
    return (exponent.long() - 1 + below) * per_octave + within
