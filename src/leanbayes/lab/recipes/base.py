"""A recipe: how one predictor is built and trained. This module has all that the author of a recipe needs."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from torch import nn

from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes.options import option
from leanbayes.lab.recipes.relative import RelativeCost
from leanbayes.lab.recipes.run import Run
from leanbayes.likelihood import Likelihood
from leanbayes.train import Scales

__all__ = ["OnTop", "Recipe", "Run", "Trained", "option", "prepare"]


class Recipe(ABC):
    """How one predictor is built and trained: a frozen dataclass with a ``name`` and a method ``train``.

    The fields of the dataclass are the recipe's options. Declare each with `option`.
    """

    name: ClassVar[str]

    @abstractmethod
    def train(self, task: Task, run: Run) -> nn.Module:
        """Build and train the predictor, and return it."""

    def relative_cost(self) -> RelativeCost | None:
        """Return what a training step costs by a formula; None for a method that has no formula."""
        return None

    def networks(self) -> int:
        """Return how many networks the recipe trains for the budget's epochs, by which progress is foretold."""
        return 1

    def least_epochs(self) -> int:
        """Return how many epochs the recipe needs at least: one for each of its stages."""
        part = getattr(self, "pretrain", None) or 0.0
        return 2 if 0 < part < 1 else 1


@dataclass(frozen=True)
class OnTop(Recipe):
    """A recipe that improves the predictor of another recipe, and is written after a plus: ``vi+temperature``.

    Args:
        of: the recipe underneath.
    """

    of: Recipe

    def networks(self) -> int:
        """Return how many networks the recipe underneath trains."""
        return self.of.networks()

    def least_epochs(self) -> int:
        """Return how many epochs the recipe underneath needs."""
        return self.of.least_epochs()


@dataclass(frozen=True)
class Trained:
    """A trained predictor and how it was trained.

    Args:
        predictor: the predictor, in evaluation mode.
        likelihood: what its outputs mean; the training may have learnt a noise for it.
        seconds: how long the training took.
        scales: how the scales of the random weights moved, by stage. It is empty where no scale was trained.
    """

    predictor: nn.Module
    likelihood: Likelihood
    seconds: float
    scales: Mapping[str, Scales] = field(default_factory=dict)


def prepare(recipe: Recipe, task: Task, run: Run) -> Trained:
    """Train a recipe on a task, and leave the task as it was.

    Args:
        recipe: what to train.
        task: the data, the model and the likelihood.
        run: the budget, the seed and where checkpoints go.

    Returns:
        The predictor, its likelihood, and how it was trained.
    """
    task = replace(task, likelihood=copy.deepcopy(task.likelihood))
    run.budget = run.budget.fitting(task)
    predictor = recipe.train(task, run)
    return Trained(predictor.eval(), task.likelihood, run.seconds, dict(run.scales))
