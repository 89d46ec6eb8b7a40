"""How good a prediction is, and how well it knows it."""

from leanbayes.evaluate.metrics import accuracy, auroc, brier, calibration_error, nll

__all__ = ["accuracy", "auroc", "brier", "calibration_error", "nll"]
