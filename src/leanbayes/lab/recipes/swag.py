"""SWAG (Maddox et al. 2019): a Gaussian fitted to the weights that SGD visits at a constant learning rate."""

from dataclasses import dataclass

from torch import nn

from leanbayes.baselines import Swag
from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes.base import Recipe, Run, option

__all__ = ["SwagRecipe"]


@dataclass(frozen=True)
class SwagRecipe(Recipe):
    """A Gaussian whose mean and covariance are those of the weights over the last epochs."""

    name = "swag"
    pretrain: float = option(0.5, "The share of the epochs before weights are collected.", within="[0, 1)")
    rank: int = option(
        20, "How many deviations from the mean are kept for the covariance; 0 makes it diagonal.", within="[0, inf)"
    )
    lr: float = option(1e-2, "The learning rate of SGD while weights are collected.", within="(0, inf)")
    draws: int = option(
        30,
        "How many weight draws are kept with their own batch-norm statistics, if the model has batch norm.",
        within="[1, inf)",
    )

    def train(self, task: Task, run: Run) -> nn.Module:
        """Train the plain network, then go on with SGD and collect the weights after each epoch."""
        first, rest = run.share(self.pretrain)
        swag = Swag(run.plain(task, first), rank=self.rank)
        sgd = {"optimizer": "sgd", "lr": self.lr, "schedule": "constant", "patience": None}
        callbacks = [lambda epoch: swag.collect()]  # noqa: ARG005
        run.fit(swag, task, "swag", rest, optimization=sgd, validate=None, callbacks=callbacks)
        with run.charged():
            swag.update_norms(run.tracked(task.train, "batch norms of the draws"), self.draws)
        return swag
