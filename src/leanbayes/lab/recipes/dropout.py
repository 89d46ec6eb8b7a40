"""Monte Carlo dropout (Gal and Ghahramani 2016), inserted where 001's appendix H.3.2 has it."""

from dataclasses import dataclass

from torch import nn

from leanbayes.baselines import MCDropout
from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes.base import Recipe, Run, option

__all__ = ["Dropout"]


@dataclass(frozen=True)
class Dropout(Recipe):
    """One network with dropout, also when it predicts."""

    name = "dropout"
    rate: float = option(0.2, "of dropout, where the model has none of its own")

    def train(self, task: Task, run: Run) -> nn.Module:
        """All epochs, with dropout."""
        model = MCDropout(run.new_model(task), rate=self.rate)
        run.fit(model, task, "dropout", run.budget.epochs)
        return model
