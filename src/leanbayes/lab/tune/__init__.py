"""Search the options of a recipe, above all the weight of its KL term, on the validation set."""

from leanbayes.lab.tune.search import Search, tune
from leanbayes.lab.tune.space import Space

__all__ = ["Search", "Space", "tune"]
