"""The metrics of predicted numbers: how far they are from the truth, and whether their intervals cover it.

This module also holds NLL and AURC, which every kind of data has: numbers and class probabilities accumulate them in
different ways.
"""

import math

import torch
from torch import Tensor

from leanbayes.errors import ShapeMismatch
from leanbayes.likelihood import Likelihood
from leanbayes.metrics import confidence
from leanbayes.metrics.calibration import Reliability
from leanbayes.metrics.histogram import Histogram
from leanbayes.metrics.metric import Accumulator, Findings, Metric
from leanbayes.metrics.ranking import area_under_risk, risk_at_coverage
from leanbayes.metrics.regression import gaussian_terms, half_width
from leanbayes.prediction import Prediction

__all__ = ["Real"]

LEVELS = (0.5, 0.8, 0.9, 0.95)
KINDS = ("regression",)


class Real(Accumulator):
    """Accumulates RMSE, NLL and CRPS of the moment-matched Gaussian, interval coverage, and risk by deviation."""

    def __init__(self, likelihood: Likelihood) -> None:  # noqa: ARG002
        self.sums: dict[str, Tensor] = {}  # on the device of the predictions, so that no batch waits for it
        self.by_deviation = Histogram(2)  # count, squared error
        self.levels = [level / 20 for level in range(1, 20)]

    def add(self, prediction: Prediction, targets: Tensor) -> None:
        """Take in a batch."""
        if prediction.mean.shape != targets.shape:
            raise ShapeMismatch(
                f"predictions of shape {tuple(prediction.mean.shape)} and targets of {tuple(targets.shape)} do not fit"
            )
        terms = gaussian_terms(prediction.mean, prediction.total, targets)
        square = terms["square"].flatten()
        self.by_deviation.add(terms["deviation"].flatten(), torch.stack([torch.ones_like(square), square], dim=1))
        values = {name: terms[name] for name in ("nll", "crps", "square")}
        values |= {f"coverage@{level}": terms["distance"] <= half_width(level) for level in self.levels}
        for name, value in values.items():
            total = value.sum(dtype=torch.float64)
            self.sums[name] = self.sums[name] + total if name in self.sums else total

    def report(self, findings: Findings) -> None:
        """Write the metrics of all batches so far into ``findings``."""
        count = len(self.by_deviation)
        findings.put("rmse", math.sqrt(float(self.sums["square"]) / count))
        findings.put("nll", self.sums["nll"] / count)
        findings.put("crps", self.sums["crps"] / count)
        shares = [float(self.sums[f"coverage@{level}"]) / count for level in self.levels]
        covered = torch.tensor(shares, dtype=torch.float64)
        for level in LEVELS:
            findings.put(f"coverage@{level}", covered[self.levels.index(level)])
        nominal = torch.tensor(self.levels, dtype=torch.float64)
        findings.put("coverage_error", (covered - nominal).abs().mean())
        findings.put("aurc", *area_under_risk(self.by_deviation.table))
        findings.risk_coverage = risk_at_coverage(self.by_deviation.table)
        findings.reliability = Reliability(nominal, covered, torch.full_like(nominal, count))


_ANY = dict.fromkeys(confidence.KINDS, confidence.Confidence) | dict.fromkeys(KINDS, Real)

NLL = Metric(
    "nll",
    "low",
    "NLL",
    "The negative log likelihood, in nats: it punishes predictions that are sure and wrong.",
    _ANY,
)
AURC = Metric(
    "aurc",
    "low",
    "AURC",
    "The mean error when the least sure predictions are set aside one after the other.",
    _ANY,
)
RMSE = Metric(
    "rmse",
    "low",
    "RMSE",
    "The root of the mean squared error: a typical distance of the prediction from the truth, in the target's unit.",
    Real,
    KINDS,
)
CRPS = Metric(
    "crps",
    "low",
    "CRPS",
    "The mean distance between the predicted distribution and the truth, in the target's unit.",
    Real,
    KINDS,
)
COVERAGE = Metric(
    "coverage",
    None,
    "Coverage",
    "The share of true values inside the predicted interval: it should equal the level of the interval.",
    Real,
    KINDS,
)
COVERAGE_ERROR = Metric(
    "coverage_error",
    "low",
    "Coverage error",
    "The mean distance between the shares of true values inside predicted intervals and the levels of the intervals.",
    Real,
    KINDS,
)
