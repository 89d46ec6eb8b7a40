"""Monte Carlo dropout (Gal and Ghahramani 2016), placed as in sensitivity-guided subnetworks, appendix H.3.2."""

from dataclasses import dataclass

from torch import nn

from leanbayes.baselines import MCDropout
from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes.base import Recipe, Run, option

__all__ = ["Dropout"]


@dataclass(frozen=True)
class Dropout(Recipe):
    """One network with dropout, which stays active when it predicts."""

    name = "dropout"
    rate: float = option(
        0.2, "The share of units that dropout removes, where the model has no dropout of its own.", within="(0, 1)"
    )

    def train(self, task: Task, run: Run) -> nn.Module:
        """Train for all epochs with dropout."""
        model = MCDropout(run.new_model(task), rate=self.rate)
        run.fit(model, task, "dropout", run.budget.epochs)
        return model
