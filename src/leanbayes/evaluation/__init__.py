"""Measure a predictor: all metrics of a data set in one pass, what it costs, what pruning and explaining give."""

from leanbayes.evaluation.explain import Explainer
from leanbayes.evaluation.pruning import Pruned, PruningCurve, accuracy_on, packed, prune, pruning_curve, unpack
from leanbayes.evaluation.run import Evaluation, PredictedBatch, evaluate

__all__ = [
    "Evaluation",
    "Explainer",
    "PredictedBatch",
    "Pruned",
    "PruningCurve",
    "accuracy_on",
    "evaluate",
    "packed",
    "prune",
    "pruning_curve",
    "unpack",
]
