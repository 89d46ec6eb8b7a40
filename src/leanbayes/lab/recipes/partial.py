"""Partial Bayesian networks (000, 001): the most sensitive weights are random, the rest are not."""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes.base import Run, option
from leanbayes.lab.recipes.relative import RelativeCost
from leanbayes.lab.recipes.variational import Variational
from leanbayes.subspace import Subspace, sensitivity, top_k

__all__ = ["Partial"]


@dataclass(frozen=True)
class Partial(Variational):
    """The most sensitive weights random."""

    name = "partial"
    rate: float = option(0.01, "share of the weights that is random")
    scope: Literal["global", "layer"] = option("global", "global, or layer: the same rate in each")

    def subspace(self, model: nn.Module, task: Task, run: Run) -> Subspace:
        """Those with the largest absolute gradient of the loss over the training set."""
        scores = sensitivity(model, run.tracked(task.train, "sensitivity"), task.likelihood)
        return top_k(scores, rate=self.rate, scope=self.scope)

    def relative_cost(self) -> RelativeCost:
        """Return the row of Table 1 of sensitivity-guided subnetworks for this method."""
        return RelativeCost(1 + self.rate, (1 + self.rate) * (self.draws + 2), 2)
