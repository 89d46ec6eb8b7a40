"""Scores of numbers: how far a target lies from what was predicted. `INTERVAL_SCORES` holds them by name."""

from leanbayes.conformal.interval_scores.quantiles import Quantiles
from leanbayes.conformal.interval_scores.residuals import Absolute, Scaled
from leanbayes.conformal.interval_scores.score import INTERVAL_SCORES, IntervalScore, as_interval_score

__all__ = ["INTERVAL_SCORES", "Absolute", "IntervalScore", "Quantiles", "Scaled", "as_interval_score"]
