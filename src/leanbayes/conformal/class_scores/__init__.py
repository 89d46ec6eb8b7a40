"""Scores of classes: how badly a class conforms to predicted probabilities. `CLASS_SCORES` holds them by name."""

from leanbayes.conformal.class_scores.adaptive import APS, RAPS
from leanbayes.conformal.class_scores.least_ambiguous import LAC
from leanbayes.conformal.class_scores.score import CLASS_SCORES, ClassScore, as_class_score
from leanbayes.conformal.class_scores.top_k import TopK

__all__ = ["APS", "CLASS_SCORES", "LAC", "RAPS", "ClassScore", "TopK", "as_class_score"]
