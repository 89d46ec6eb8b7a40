"""One number that calibrates the predictor of any other recipe: ``partial+temperature``.

For classes and labels it is the temperature of the logits (Guo et al. 2017), for numbers the factor of the noise that
the network predicts (Levi et al. 2022).
"""

from dataclasses import dataclass, field

from torch import nn

from leanbayes.baselines import rescaling_for
from leanbayes.errors import InputError
from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes.base import OnTop, Recipe, Run
from leanbayes.lab.recipes.deterministic import Deterministic

__all__ = ["TemperatureRecipe"]


@dataclass(frozen=True)
class TemperatureRecipe(OnTop):
    """Another recipe's predictor, with one number on its logits or on its noise that the validation set decides."""

    name = "temperature"
    of: Recipe = field(default_factory=Deterministic)

    def train(self, task: Task, run: Run) -> nn.Module:
        """Train the recipe underneath, then fit the temperature on the validation set."""
        rescaling = rescaling_for(task.likelihood)
        if rescaling is None:
            raise InputError(
                f"+temperature needs logits or a noise that the network predicts, and {type(task.likelihood).__name__} "
                "has neither here; leave +temperature out"
            )
        model = self.of.train(task, run)
        with run.charged():
            return rescaling.fit(model, run.tracked(task.validation, "temperature"), task.likelihood)
