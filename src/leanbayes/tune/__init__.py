"""A recipe's numbers, above all the weight of the KL term, found by search on the validation set."""

from leanbayes.tune.space import Space
from leanbayes.tune.tune import tune

__all__ = ["Space", "tune"]
