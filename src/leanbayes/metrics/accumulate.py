"""The metrics of a stream of batches, in memory that does not grow with it.

Means are sums. Metrics that rank, and bins of equal mass, come from histograms with a fixed number of cells: the same
formulas as for all inputs at once, with the scores in a cell taken as tied. How far that can be off is computed from
the histogram and stored beside the metric; where no two different scores share a cell there is no error at all.
How a stream is cut into batches does not matter, but for the rounding of sums in float64.
"""

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from leanbayes.errors import InputError, ShapeMismatch
from leanbayes.metrics.calibration import (
    Reliability,
    confidence_sums,
    error_of_bins,
    mass_bins,
    reliability_of_bins,
    width_bins,
)
from leanbayes.metrics.quality import IGNORE, cells_of, overlap
from leanbayes.metrics.ranking import (
    RiskCoverage,
    area_under_precision_recall,
    area_under_risk,
    area_under_roc,
    false_positives,
    one_against_rest,
    risk_at_coverage,
)
from leanbayes.metrics.regression import gaussian_terms, half_width
from leanbayes.prediction import Prediction

__all__ = ["ClassAuc", "Confidence", "Findings", "Histogram", "Masks", "Part", "Real", "detection"]

BINS = 15
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.99)  # 003's, whose last is 1: no mean of softmax outputs gets there
LEVELS = (0.5, 0.8, 0.9, 0.95)
_OCTAVES, _PER_OCTAVE = 64, 1024  # cells from 2⁻⁶⁴ to 2⁶⁴, each 0.1 % wide: 1 MB a column
_ODDS_OCTAVES, _ODDS_PER_OCTAVE = 32, 64  # for p and 1 − p down to 2⁻³²: 64 kB a class


@dataclass
class Findings:
    """Metrics by name, bounds of their errors where they come from histograms, and what could not be measured."""

    metrics: dict[str, float] = field(default_factory=dict)
    bounds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    reliability: Reliability | None = None
    risk_coverage: RiskCoverage | None = None

    def put(self, name: str, value: Tensor | float, bound: Tensor | float | None = None) -> None:
        """Keep one metric."""
        self.metrics[name] = float(value)
        if bound is not None:
            self.bounds[name] = float(bound)


class Part(Protocol):
    """Some metrics of one kind of task, batch by batch."""

    def add(self, prediction: Prediction, targets: Tensor) -> None:
        """Take in a batch."""

    def report(self, findings: Findings) -> None:
        """Say what was found so far."""


class Histogram:
    """Sums of columns over cells of a score ≥ 0, log-spaced: a cell is 2⁻¹⁰ of its score wide, or narrower.

    >>> histogram = Histogram(1)
    >>> histogram.add(torch.tensor([0.5, 0.5, 2.0]), torch.ones(3, 1))
    >>> histogram.table[histogram.table[:, 0] > 0].T
    tensor([[2., 1.]], dtype=torch.float64)
    """

    def __init__(self, columns: int) -> None:
        self.table = torch.zeros(2 * _OCTAVES * _PER_OCTAVE, columns, dtype=torch.float64)

    def add(self, scores: Tensor, columns: Tensor) -> None:
        """Add rows (n, columns) at their scores (n)."""
        self.table = self.table.to(scores.device)
        self.table.index_add_(0, _log_cell(scores, _OCTAVES, _OCTAVES, _PER_OCTAVE), columns.double())

    def __len__(self) -> int:
        return int(self.table[:, 0].sum())


class Confidence:
    """Of classes, labels and pixels alike, cell by cell: accuracy, NLL, Brier, calibration, doubt against error."""

    def __init__(self, ignore_index: int = IGNORE) -> None:
        self.ignore_index = ignore_index
        self.sums: defaultdict[str, float] = defaultdict(float)
        self.bins = torch.zeros(BINS, 3, dtype=torch.float64)
        self.by_doubt = Histogram(3)  # count, confidence, correct

    def add(self, prediction: Prediction, targets: Tensor) -> None:
        """Take in a batch."""
        cells = cells_of(prediction.mean, targets, self.ignore_index)
        if not len(cells.targets):
            return
        sums = confidence_sums(cells)
        self.bins = self.bins.to(sums.device) + width_bins(cells, BINS)
        self.by_doubt.add(cells.doubt, sums)
        values = {
            "accuracy": cells.correct,
            "nll": cells.nll,
            "brier": cells.brier,
            "entropy": prediction.total[cells.counted],
            "mutual_information": prediction.epistemic[cells.counted],
        }
        for threshold in THRESHOLDS:
            inside = cells.confidence >= threshold
            values[f"set_size@{threshold}"] = inside.double()
            values[f"set_accuracy@{threshold}"] = inside * cells.correct
        for name, value in values.items():
            self.sums[name] += float(value.sum(dtype=torch.float64))

    def report(self, findings: Findings) -> None:
        """Say what was found so far."""
        count = len(self.by_doubt)
        if not count:
            raise InputError("there are no examples to measure: every target is ignored")
        for name, total in self.sums.items():
            if not name.startswith("set_accuracy@"):
                findings.put(name, total / count)
                continue
            inside = self.sums[name.replace("accuracy", "size")]
            if inside:
                findings.put(name, total / inside)
            else:
                findings.notes.append(f"{name}: left out, no confidence is that high")
        table = self.by_doubt.table
        mass, bound = mass_bins(table.flip(0), BINS, width=1 / _PER_OCTAVE)
        findings.put("ece", error_of_bins(self.bins))
        findings.put("ece_mass", error_of_bins(mass), bound)
        wrong = table[:, 0] - table[:, 2]
        detection(findings, "error", table[:, 2], wrong, missing=("no prediction is right", "no prediction is wrong"))
        risks = torch.stack([table[:, 0], wrong], dim=1)
        findings.put("aurc", *area_under_risk(risks))
        findings.risk_coverage = risk_at_coverage(risks)
        findings.reliability = reliability_of_bins(self.bins)


class ClassAuc:
    """AUC of each class against the rest, or of each label, from histograms of log-odds: fine near 0 and near 1."""

    def __init__(self, ignore_index: int = IGNORE) -> None:
        self.ignore_index = ignore_index
        self.counts: Tensor | None = None  # (classes, cells, 2)

    def add(self, prediction: Prediction, targets: Tensor) -> None:
        """Take in a batch."""
        cells = cells_of(prediction.mean, targets, self.ignore_index)
        scores, truth = one_against_rest(prediction.mean, targets, cells.counted, labels=cells.labels)
        half = _ODDS_OCTAVES * _ODDS_PER_OCTAVE
        low, high = (_log_cell(p, _ODDS_OCTAVES, 0, _ODDS_PER_OCTAVE) for p in (scores, 1 - scores.double()))
        place = torch.where(scores < 0.5, low, 2 * half - 1 - high)
        if self.counts is None:
            self.counts = torch.zeros(len(scores), 2 * half, 2, dtype=torch.int64, device=scores.device)
        rows = torch.arange(len(scores), device=place.device)[:, None]
        index = ((rows * 2 * half + place) * 2 + truth.long()).flatten()
        self.counts.view(-1).index_add_(0, index, torch.ones_like(index))

    def report(self, findings: Findings) -> None:
        """Say what was found so far."""
        assert self.counts is not None
        known = (self.counts.sum(1) > 0).all(1)
        if not known.all():
            left_out = (~known).nonzero()[:, 0].tolist()
            names = ", ".join(map(str, left_out[:10])) + (", ..." if len(left_out) > 10 else "")
            findings.notes.append(
                f"auc: leaves out {len(left_out)} of {len(known)} classes ({names}), as their targets are all alike"
            )
        if known.any():
            values, bounds = area_under_roc(self.counts[known])
            findings.put("auc", values.mean(), bounds.mean())


class Masks:
    """Foreground Dice of each image, and IoU of each class over all images."""

    def __init__(self, ignore_index: int = IGNORE) -> None:
        self.ignore_index = ignore_index
        self.dice, self.images = 0.0, 0
        self.both: Tensor | int = 0
        self.union: Tensor | int = 0

    def add(self, prediction: Prediction, targets: Tensor) -> None:
        """Take in a batch."""
        found = overlap(prediction.mean, targets, ignore_index=self.ignore_index)
        scores = found.dice()
        self.dice, self.images = self.dice + float(scores.sum()), self.images + len(scores)
        self.both = self.both + found.both.sum(0)
        self.union = self.union + (found.predicted + found.true - found.both).sum(0)

    def report(self, findings: Findings) -> None:
        """Say what was found so far."""
        assert isinstance(self.both, Tensor)
        assert isinstance(self.union, Tensor)
        findings.put("dice", self.dice / self.images)
        shares = (self.both.double() / self.union).tolist()
        for c, share in enumerate(shares):
            if math.isnan(share):
                findings.notes.append(f"iou/{c}: left out, as the class is neither predicted nor true anywhere")
            else:
                findings.put(f"iou/{c}", share)
        findings.put("miou", math.fsum(s for s in shares if s == s) / sum(s == s for s in shares))


class Real:
    """Of real numbers: RMSE, NLL and CRPS of the moment-matched Gaussian, interval coverage, risk by deviation."""

    def __init__(self) -> None:
        self.sums: defaultdict[str, float] = defaultdict(float)
        self.by_deviation = Histogram(2)  # count, squared error
        self.levels = [level / 20 for level in range(1, 20)]

    def add(self, prediction: Prediction, targets: Tensor) -> None:
        """Take in a batch."""
        if prediction.mean.shape != targets.shape:
            raise ShapeMismatch(
                f"predictions of shape {tuple(prediction.mean.shape)} and targets of {tuple(targets.shape)}"
            )
        terms = gaussian_terms(prediction.mean, prediction.total, targets)
        square = terms["square"].flatten()
        self.by_deviation.add(terms["deviation"].flatten(), torch.stack([torch.ones_like(square), square], dim=1))
        for name in ("nll", "crps", "square"):
            self.sums[name] += float(terms[name].sum(dtype=torch.float64))
        for level in self.levels:
            self.sums[f"coverage@{level}"] += int((terms["distance"] <= half_width(level)).sum())

    def report(self, findings: Findings) -> None:
        """Say what was found so far."""
        count = len(self.by_deviation)
        findings.put("rmse", math.sqrt(self.sums["square"] / count))
        findings.put("nll", self.sums["nll"] / count)
        findings.put("crps", self.sums["crps"] / count)
        covered = torch.tensor([self.sums[f"coverage@{level}"] / count for level in self.levels], dtype=torch.float64)
        for level in LEVELS:
            findings.put(f"coverage@{level}", covered[self.levels.index(level)])
        nominal = torch.tensor(self.levels, dtype=torch.float64)
        findings.put("coverage_error", (covered - nominal).abs().mean())
        findings.put("aurc", *area_under_risk(self.by_deviation.table))
        findings.risk_coverage = risk_at_coverage(self.by_deviation.table)
        findings.reliability = Reliability(nominal, covered, torch.full_like(nominal, count))


def detection(findings: Findings, prefix: str, negatives: Tensor, positives: Tensor, missing: tuple[str, str]) -> None:
    """AUROC, AUPR and FPR95 from counts in the cells of one histogram; or a note, where one side is missing."""
    for side, why in zip((negatives, positives), missing, strict=True):
        if not side.any():
            findings.notes.append(f"{prefix}/auroc, aupr, fpr95: left out, as {why}")
            return
    table = torch.stack([negatives, positives.to(negatives.device)], dim=-1)
    findings.put(f"{prefix}/auroc", *area_under_roc(table))
    findings.put(f"{prefix}/aupr", *area_under_precision_recall(table))
    findings.put(f"{prefix}/fpr95", *false_positives(table))


def _log_cell(scores: Tensor, below: int, above: int, per_octave: int) -> Tensor:
    """The cell of each score, ``per_octave`` to a doubling, from 2^−below to 2^above; others join the ends."""
    mantissa, exponent = torch.frexp(scores.double().clamp(2.0**-below, 2.0**above * (1 - 2**-50)))
    within = ((2 * mantissa - 1) * per_octave).long()  # mantissa is in [½, 1)
    return (exponent.long() - 1 + below) * per_octave + within
