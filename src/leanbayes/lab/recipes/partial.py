"""Partial Bayesian networks (Abboud et al. 2024; sensitivity-guided subnetworks): sensitive weights are random."""

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
    """The weights to which the loss is most sensitive are random; all others are ordinary weights."""

    name = "partial"
    rate: float = option(0.01, "The share of the weights that is random.")
    scope: Literal["global", "layer"] = option(
        "global",
        "Where weights compete: in the whole network (global), or within each layer, at the same rate (layer).",
    )

    def subspace(self, model: nn.Module, task: Task, run: Run) -> Subspace:
        """Choose the weights with the largest absolute gradient of the loss over the training set."""
        scores = sensitivity(model, run.tracked(task.train, "sensitivity"), task.likelihood)
        return top_k(scores, rate=self.rate, scope=self.scope)

    def relative_cost(self) -> RelativeCost:
        """Return the row of Table 1 of sensitivity-guided subnetworks for this method."""
        return RelativeCost(1 + self.rate, (1 + self.rate) * (self.draws + 2), 2)
