"""Temperature scaling (Guo et al. 2017), which goes on top of any other recipe: ``partial+temperature``."""

from dataclasses import dataclass, field

from torch import nn

from leanbayes.baselines import Temperature
from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes.base import OnTop, Recipe, Run
from leanbayes.lab.recipes.deterministic import Deterministic

__all__ = ["TemperatureRecipe"]


@dataclass(frozen=True)
class TemperatureRecipe(OnTop):
    """Another recipe's predictor, whose logits are divided by one number that the validation set decides."""

    name = "temperature"
    of: Recipe = field(default_factory=Deterministic)

    def train(self, task: Task, run: Run) -> nn.Module:
        """Train the recipe underneath, then fit the temperature on the validation set."""
        model = self.of.train(task, run)
        with run.charged():
            return Temperature.fit(model, run.tracked(task.validation, "temperature"), task.likelihood)
