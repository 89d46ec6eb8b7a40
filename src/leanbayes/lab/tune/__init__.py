"""A recipe's numbers, above all the weight of the KL term, found by search on the validation set."""

from leanbayes.lab.tune.search import tune
from leanbayes.lab.tune.space import Space

__all__ = ["Space", "tune"]
