"""The plain network: the price and the quality that all others are held against."""

from dataclasses import dataclass

from torch import nn

from leanbayes.evaluation.cost import Relative, table_1
from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes.base import Recipe, Run

__all__ = ["Deterministic"]


@dataclass(frozen=True)
class Deterministic(Recipe):
    """One network, trained as usual."""

    name = "deterministic"

    def train(self, task: Task, run: Run) -> nn.Module:
        """All epochs on the likelihood."""
        return run.plain(task, run.budget.epochs)

    def formula(self) -> Relative:
        """001, Table 1."""
        return table_1("deterministic")
