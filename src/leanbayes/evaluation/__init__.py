"""Measure a predictor: all metrics of a data set in one pass, what it costs, what pruning and explaining give."""

from leanbayes.evaluation.explain import Explainer
from leanbayes.evaluation.pruning import Pruned, PruningCurve, accuracy_on, packed, prune, pruning_curve, unpack
from leanbayes.evaluation.run import BETTER, Evaluation, better, evaluate, input_uncertainty, metrics_for

__all__ = [
    "BETTER",
    "Evaluation",
    "Explainer",
    "Pruned",
    "PruningCurve",
    "accuracy_on",
    "better",
    "evaluate",
    "input_uncertainty",
    "metrics_for",
    "packed",
    "prune",
    "pruning_curve",
    "unpack",
]
