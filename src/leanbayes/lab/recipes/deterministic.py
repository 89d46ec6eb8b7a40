"""The plain network, against whose price and quality all other methods are measured."""

from dataclasses import dataclass

from torch import nn

from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes.base import Recipe, Run
from leanbayes.lab.recipes.relative import RelativeCost

__all__ = ["Deterministic"]


@dataclass(frozen=True)
class Deterministic(Recipe):
    """The plain network, trained as usual."""

    name = "deterministic"

    def train(self, task: Task, run: Run) -> nn.Module:
        """Train for all epochs on the likelihood."""
        return run.plain(task, run.budget.epochs)

    def relative_cost(self) -> RelativeCost:
        """Return the row of Table 1 of sensitivity-guided subnetworks for this method."""
        return RelativeCost(1, 3, 1)
