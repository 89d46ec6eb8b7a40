"""How good a prediction is, and how well it knows it."""

from leanbayes.evaluate.calibration import (
    Reliability,
    calibration_error,
    confidence_set,
    entropy,
    mutual_information,
    reliability,
)
from leanbayes.evaluate.evaluate import BETTER, Evaluation, better, evaluate, input_uncertainty, metrics_for
from leanbayes.evaluate.explain import Explainer
from leanbayes.evaluate.noise import NoiseCurve, accuracy_under_noise, add_noise, noise_curve, output_variance
from leanbayes.evaluate.prune import Pruned, PruningCurve, accuracy_on, packed, prune, pruning_curve, unpack
from leanbayes.evaluate.quality import accuracy, brier, dice, iou, mean_iou, nll
from leanbayes.evaluate.ranking import RiskCoverage, auc, aupr, aurc, auroc, class_auc, fpr95, risk_coverage
from leanbayes.evaluate.raters import generalised_energy_distance, rater_agreement, rater_entropy
from leanbayes.evaluate.regression import gaussian_crps, gaussian_nll, interval_coverage, rmse, sample_crps

__all__ = [
    "BETTER",
    "Evaluation",
    "Explainer",
    "NoiseCurve",
    "Pruned",
    "PruningCurve",
    "Reliability",
    "RiskCoverage",
    "accuracy",
    "accuracy_on",
    "accuracy_under_noise",
    "add_noise",
    "auc",
    "aupr",
    "aurc",
    "auroc",
    "better",
    "brier",
    "calibration_error",
    "class_auc",
    "confidence_set",
    "dice",
    "entropy",
    "evaluate",
    "fpr95",
    "gaussian_crps",
    "gaussian_nll",
    "generalised_energy_distance",
    "input_uncertainty",
    "interval_coverage",
    "iou",
    "mean_iou",
    "metrics_for",
    "mutual_information",
    "nll",
    "noise_curve",
    "output_variance",
    "packed",
    "prune",
    "pruning_curve",
    "rater_agreement",
    "rater_entropy",
    "reliability",
    "risk_coverage",
    "rmse",
    "sample_crps",
    "unpack",
]
