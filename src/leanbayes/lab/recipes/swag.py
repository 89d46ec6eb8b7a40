"""SWAG (Maddox et al. 2019): the posterior from where SGD wanders at a constant learning rate."""

from dataclasses import dataclass

from torch import nn

from leanbayes.baselines import Swag
from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes.base import Recipe, Run, option

__all__ = ["SwagRecipe"]


@dataclass(frozen=True)
class SwagRecipe(Recipe):
    """Moments of the weights over the last epochs."""

    name = "swag"
    pretrain: float = option(0.5, "share of the epochs before weights are collected")
    rank: int = option(20, "deviations kept; 0 for a diagonal posterior")
    lr: float = option(1e-2, "of SGD while weights are collected")
    draws: int = option(30, "kept with batch-norm statistics of their own, if the model has batch norms")

    def train(self, task: Task, run: Run) -> nn.Module:
        """A plain start, then SGD; the weights are collected after each epoch."""
        first, rest = run.share(self.pretrain)
        swag = Swag(run.plain(task, first), rank=self.rank)
        sgd = {"optimizer": "sgd", "lr": self.lr, "schedule": "constant", "patience": None}
        callbacks = [lambda epoch: swag.collect()]  # noqa: ARG005
        run.fit(swag, task, "swag", rest, optimization=sgd, validate=None, callbacks=callbacks)
        with run.charged():
            swag.update_norms(run.tracked(task.train, "batch norms of the draws"), self.draws)
        return swag
