"""RigL (Evci et al. 2020): a sparse deterministic network whose weights move; what 004 compares its own with."""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes.base import Recipe, Run, option
from leanbayes.lab.recipes.ssvi import interval
from leanbayes.subspace import Rewire, make_sparse, sparse

__all__ = ["RigL"]


@dataclass(frozen=True)
class RigL(Recipe):
    """A sparse network, not random: the smallest weights go, those of the largest gradient come."""

    name = "rigl"
    density: float = option(0.05, "share of the weights that is stored; the others are zero")
    layout: Literal["uniform", "erdos_renyi"] = option("uniform", "the same density in each layer, or erdos_renyi")
    rate: float = option(0.3, "share of the weights that moves at first; it falls to 0 as a cosine")
    every: int | None = option(None, "steps between two moves; by default there are about 40 moves")
    stop: float = option(0.75, "share of training after which nothing moves")

    def __post_init__(self) -> None:
        sparse(self.density, layout=self.layout)
        self.rewiring(1)

    def train(self, task: Task, run: Run) -> nn.Module:
        """All epochs on the likelihood."""
        model = make_sparse(run.new_model(task), self.density, layout=self.layout, seed=run.seed)
        steps = run.budget.epochs * len(run.loader(task.train))
        run.fit(model, task, self.name, run.budget.epochs, rewire=self.rewiring(steps))
        return model

    def rewiring(self, steps: int) -> Rewire:
        """By magnitude and gradient."""
        every = interval(steps, self.stop) if self.every is None else self.every
        return Rewire("magnitude", rate=self.rate, every=every, stop=self.stop)
