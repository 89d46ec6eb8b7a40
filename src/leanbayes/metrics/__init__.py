"""How good a prediction is, and how well it knows that: plain functions of predictions and targets."""

from leanbayes.metrics.calibration import (
    Reliability,
    calibration_error,
    confidence_set,
    entropy,
    mutual_information,
    reliability,
)
from leanbayes.metrics.quality import accuracy, brier, dice, iou, mean_iou, nll
from leanbayes.metrics.ranking import RiskCoverage, auc, aupr, aurc, auroc, class_auc, fpr95, risk_coverage
from leanbayes.metrics.raters import generalised_energy_distance, rater_agreement, rater_entropy
from leanbayes.metrics.regression import gaussian_crps, gaussian_nll, interval_coverage, rmse, sample_crps

__all__ = [
    "Reliability",
    "RiskCoverage",
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
    "mutual_information",
    "nll",
    "rater_agreement",
    "rater_entropy",
    "reliability",
    "risk_coverage",
    "rmse",
    "sample_crps",
]
