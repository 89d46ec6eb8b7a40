"""The metrics of class probabilities: how often they are right, how well calibrated they are, how doubt warns of error.

They serve classes, independent labels and pixels alike. Each image, label or pixel that is scored by itself is called a
cell (see `leanbayes.metrics.quality`).
"""

import torch
from torch import Tensor

from leanbayes.errors import InputError
from leanbayes.likelihood import Likelihood
from leanbayes.metrics.calibration import (
    confidence_sums,
    error_of_bins,
    mass_bins,
    reliability_of_bins,
    width_bins,
)
from leanbayes.metrics.histogram import CELL_WIDTH, Histogram, detection
from leanbayes.metrics.metric import Accumulator, Findings, Metric
from leanbayes.metrics.quality import cells_of
from leanbayes.metrics.ranking import area_under_risk, risk_at_coverage
from leanbayes.prediction import Prediction

__all__ = ["Confidence"]

BINS = 15
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.99)  # Nazarovs et al. 2021 end at 1, which no mean of softmax outputs reaches
KINDS = ("classes", "labels", "pixels")


class Confidence(Accumulator):
    """Accumulates accuracy, NLL, Brier score, calibration, and how well doubt ranks errors, cell by cell."""

    def __init__(self, likelihood: Likelihood) -> None:
        self.ignore_index = likelihood.ignore_index
        self.sums: dict[str, Tensor] = {}  # on the device of the predictions, so that no batch waits for it
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
            total = value.sum(dtype=torch.float64)
            self.sums[name] = self.sums[name] + total if name in self.sums else total

    def report(self, findings: Findings) -> None:
        """Write the metrics of all batches so far into ``findings``."""
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
                findings.notes.append(f"{name}: left out, because no confidence is that high")
        table = self.by_doubt.table
        mass, bound = mass_bins(table.flip(0), BINS, width=CELL_WIDTH)
        findings.put("ece", error_of_bins(self.bins))
        findings.put("ece_mass", error_of_bins(mass), bound)
        wrong = table[:, 0] - table[:, 2]
        detection(findings, "error", table[:, 2], wrong, missing=("no prediction is right", "no prediction is wrong"))
        risks = torch.stack([table[:, 0], wrong], dim=1)
        findings.put("aurc", *area_under_risk(risks))
        findings.risk_coverage = risk_at_coverage(risks)
        findings.reliability = reliability_of_bins(self.bins)


ACCURACY = Metric("accuracy", "high", "Accuracy", "The share of predictions that are right.", Confidence, KINDS)
BRIER = Metric(
    "brier",
    "low",
    "Brier",
    "The mean squared distance between the predicted probabilities and the truth: 0 is perfect.",
    Confidence,
    KINDS,
)
ENTROPY = Metric(
    "entropy",
    None,
    "Entropy",
    "The mean uncertainty of the predictions, in nats: 0 means that the method is always sure.",
    Confidence,
    KINDS,
)
MUTUAL_INFORMATION = Metric(
    "mutual_information",
    None,
    "Mutual information",
    "The mean part of the uncertainty that more training data could remove, in nats.",
    Confidence,
    KINDS,
)
SET_SIZE = Metric(
    "set_size",
    None,
    "Share sure",
    "The share of inputs for which the confidence is at least this high.",
    Confidence,
    KINDS,
)
SET_ACCURACY = Metric(
    "set_accuracy",
    "high",
    "Accuracy when sure",
    "The share of right predictions among those whose confidence is at least this high.",
    Confidence,
    KINDS,
)
ECE = Metric(
    "ece",
    "low",
    "ECE",
    "The mean gap between the stated confidence and the share of predictions that are right: 0 is perfect.",
    Confidence,
    KINDS,
)
ECE_MASS = Metric(
    "ece_mass",
    "low",
    "ECE, equal mass",
    "The same gap as ECE, with equally many predictions in each bin of confidence.",
    Confidence,
    KINDS,
)
ERROR_AUROC = Metric(
    "error/auroc",
    "high",
    "AUROC, error",
    "How often a wrong prediction is less sure than a right one: 1 is always, 0.5 is chance.",
    Confidence,
    KINDS,
)
ERROR_AUPR = Metric(
    "error/aupr",
    "high",
    "AUPR, error",
    "If the least sure predictions are checked first, the share of wrong ones among those checked, averaged over "
    "how many errors have been caught.",
    Confidence,
    KINDS,
)
ERROR_FPR95 = Metric(
    "error/fpr95",
    "low",
    "FPR95, error",
    "The share of right predictions that must be checked in vain in order to catch 95 % of the wrong ones.",
    Confidence,
    KINDS,
)
