"""Measure a predictor: its metrics on a data set, its costs, what pruning leaves of it, and what explains it."""

from leanbayes.evaluation.explain import Explainer
from leanbayes.evaluation.packing import packed, unpack
from leanbayes.evaluation.pruning import Pruned, prune
from leanbayes.evaluation.run import Evaluation, PredictedBatch, evaluate

__all__ = [
    "Evaluation",
    "Explainer",
    "PredictedBatch",
    "Pruned",
    "evaluate",
    "packed",
    "prune",
    "unpack",
]
