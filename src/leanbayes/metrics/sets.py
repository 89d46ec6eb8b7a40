"""How large sets and intervals are that cover 90 % of the truth: the uncertainty of methods at equal coverage.

Every method gets the threshold at which its sets hold exactly 90 % of the true answers of the data that is evaluated.
What then differs is how large the sets are. These numbers compare methods; they promise nothing about new data, which
`leanbayes.conformal` does with calibration examples.
"""

import math

import torch
from torch import Tensor

from leanbayes.errors import ShapeMismatch
from leanbayes.likelihood import Likelihood
from leanbayes.metrics.histogram import CELL_WIDTH, Histogram
from leanbayes.metrics.metric import Accumulator, Findings, Metric
from leanbayes.metrics.regression import gaussian_terms
from leanbayes.prediction import Prediction

__all__ = ["EqualCoverageSize", "EqualCoverageWidth"]

LEVEL = 0.9


class EqualCoverageSize(Accumulator):
    """Accumulates the mean number of classes whose probability is at least that which 90 % of the true classes have."""

    def __init__(self, likelihood: Likelihood) -> None:
        self.likelihood = likelihood
        self.by_odds = Histogram(2)  # true classes and all classes, by the odds against them

    def add(self, prediction: Prediction, targets: Tensor) -> None:
        """Take in a batch."""
        counted = self.likelihood.counted(targets)
        p, label = prediction.mean[counted].double(), targets[counted].long()
        odds = ((1 - p) / p.clamp_min(2.0**-64)).clamp_min(0)
        truth = torch.zeros_like(p).scatter_(1, label[:, None], 1.0)
        self.by_odds.add(odds.flatten(), torch.stack([truth.flatten(), torch.ones_like(odds).flatten()], 1))

    def report(self, findings: Findings) -> None:
        """Write the size into ``findings``, and how much the classes that share the last cell can change it."""
        count = len(self.by_odds)
        if not count:
            findings.notes.append("size_at_90: left out, because no target counts")
            return
        place = _place(self.by_odds.table[:, 0], count)
        size = self.by_odds.table[: place + 1, 1].sum() / count
        findings.put("size_at_90", size, (self.by_odds.table[place, 1] - 1) / count)


class EqualCoverageWidth(Accumulator):
    """Accumulates the mean width of the intervals mean ± q·deviation that cover 90 % of the targets."""

    def __init__(self, likelihood: Likelihood) -> None:  # noqa: ARG002
        self.by_distance = Histogram(1)
        self.deviations: Tensor | float = 0.0

    def add(self, prediction: Prediction, targets: Tensor) -> None:
        """Take in a batch."""
        if prediction.mean.shape != targets.shape:
            raise ShapeMismatch(
                f"predictions of shape {tuple(prediction.mean.shape)} and targets of {tuple(targets.shape)} do not fit"
            )
        terms = gaussian_terms(prediction.mean, prediction.total, targets)
        self.by_distance.count(terms["distance"].flatten())
        self.deviations = self.deviations + terms["deviation"].sum(dtype=torch.float64)

    def report(self, findings: Findings) -> None:
        """Write the mean width into ``findings``."""
        count, table = len(self.by_distance), self.by_distance.table
        factor = _upper_end(_place(table[:, 0], count), len(table))
        width = 2 * factor * float(self.deviations) / count
        findings.put("width_at_90", width, width * CELL_WIDTH)


def _place(counts: Tensor, count: int) -> int:
    """Return the first cell up to which 90 % of all counts lie."""
    aim = math.ceil(LEVEL * count - 1e-9)
    return int(torch.searchsorted(counts.cumsum(0), torch.tensor(float(aim), dtype=counts.dtype, device=counts.device)))


def _upper_end(place: int, cells: int) -> float:
    """Return the upper end of a cell of a `Histogram`."""
    per_octave = round(1 / CELL_WIDTH)
    octave, within = divmod(place + 1, per_octave)
    return math.ldexp(1 + within / per_octave, octave - cells // (2 * per_octave))


SIZE_AT_90 = Metric(
    "size_at_90",
    "low",
    "Set size at 90 %",
    "The mean number of classes in sets that hold 90 % of the true classes: smaller sets say more.",
    EqualCoverageSize,
    ("classes",),
)
WIDTH_AT_90 = Metric(
    "width_at_90",
    "low",
    "Width at 90 %",
    "The mean width of intervals, as wide as the predicted deviation, that hold 90 % of the true values.",
    EqualCoverageWidth,
    ("regression",),
)
CONFORMAL_COVERAGE = Metric(
    "conformal_coverage",
    None,
    "Conformal coverage",
    "The share of test examples whose conformal set or interval holds the truth; low and high are the ends of its "
    "exact 95 % interval (Clopper and Pearson).",
)
CONFORMAL_CLASS_COVERAGE = Metric(
    "conformal_class_coverage",
    None,
    "Class coverage",
    "The share of the test examples of one true class whose conformal set holds that class.",
)
CONFORMAL_GROUP_COVERAGE = Metric(
    "conformal_group_coverage",
    None,
    "Group coverage",
    "The share of the test examples of one group whose conformal set or interval holds the truth.",
)
CONFORMAL_SIZE_COVERAGE = Metric(
    "conformal_size_coverage",
    None,
    "Coverage by size",
    "The share of conformal sets of one size that hold the true class, or the same for the narrowest to the widest "
    "quarter of the intervals. It is equal for all sizes if sets grow exactly where inputs are hard.",
)
CONFORMAL_EMPTY = Metric(
    "conformal_empty",
    None,
    "Empty sets",
    "The share of conformal sets without any class, or of conformal intervals without any number.",
)
CONFORMAL_SIZE = Metric(
    "conformal_size",
    None,  # a method that covers too little has small sets; size_at_90 compares methods at equal coverage
    "Conformal size",
    "The mean number of classes in a conformal set, or the mean width of a conformal interval. Methods with another "
    "level or coverage do not compare by it.",
)
CONFORMAL_RISK = Metric(
    "conformal_risk",
    None,
    "Conformal risk",
    "The mean loss of conformal masks on the test set, such as the share of the true pixels that they miss, over "
    "patients where these are known and over cases elsewhere; low and high are the ends of a 95 % interval that holds "
    "for every law of the losses.",
)
CONFORMAL_GROUP_RISK = Metric(
    "conformal_group_risk",
    None,
    "Group risk",
    "The mean loss of conformal masks on the test cases of one group.",
)
CONFORMAL_MARKED = Metric(
    "conformal_marked",
    None,
    "Conformal share marked",
    "The mean share of an image (or of its labels) that conformal masks mark. Methods with another level or risk do "
    "not compare by it.",
)
