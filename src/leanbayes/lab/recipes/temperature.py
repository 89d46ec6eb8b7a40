"""Temperature scaling (Guo et al. 2017) on the validation set, on top of any other recipe: ``partial+temperature``."""

from dataclasses import dataclass, field

from torch import nn

from leanbayes.baselines import Temperature
from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes.base import Recipe, Run
from leanbayes.lab.recipes.deterministic import Deterministic

__all__ = ["TemperatureRecipe"]


@dataclass(frozen=True)
class TemperatureRecipe(Recipe):
    """Another recipe's predictor, its logits divided by one number."""

    name = "temperature"
    of: Recipe = field(default_factory=Deterministic)

    def train(self, task: Task, run: Run) -> nn.Module:
        """The other recipe, then one number on the validation set."""
        model = self.of.train(task, run)
        with run.charged():
            return Temperature.fit(model, run.tracked(task.validation, "temperature"), task.likelihood)
