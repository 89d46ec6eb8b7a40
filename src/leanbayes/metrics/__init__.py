"""How good predictions are, and how well they know it.

The package has plain functions of predictions and targets, such as `accuracy`, and one record for each metric that
`leanbayes.evaluate` measures over a stream of batches: `METRICS` holds them all, and `metric_named` finds one.
"""

from leanbayes.metrics.calibration import (
    Reliability,
    calibration_error,
    confidence_set,
    entropy,
    mutual_information,
    reliability,
)
from leanbayes.metrics.metric import METRICS, Accumulator, Findings, Metric, accumulators_for, mean_of, metric_named
from leanbayes.metrics.quality import accuracy, brier, dice, iou, mean_iou, nll
from leanbayes.metrics.ranking import RiskCoverage, auc, aupr, aurc, auroc, class_auc, fpr95, risk_coverage
from leanbayes.metrics.raters import generalised_energy_distance, rater_agreement, rater_entropy
from leanbayes.metrics.regression import gaussian_crps, gaussian_nll, interval_coverage, rmse, sample_crps

__all__ = [
    "METRICS",
    "Accumulator",
    "Findings",
    "Metric",
    "Reliability",
    "RiskCoverage",
    "accumulators_for",
    "accuracy",
    "auc",
    "aupr",
    "aurc",
    "auroc",
    "brier",
    "calibration_error",
    "class_auc",
    "confidence_set",
    "dice",
    "entropy",
    "fpr95",
    "gaussian_crps",
    "gaussian_nll",
    "generalised_energy_distance",
    "interval_coverage",
    "iou",
    "mean_iou",
    "mean_of",
    "metric_named",
    "mutual_information",
    "nll",
    "rater_agreement",
    "rater_entropy",
    "reliability",
    "risk_coverage",
    "rmse",
    "sample_crps",
]
