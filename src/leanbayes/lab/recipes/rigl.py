"""RigL (Evci et al. 2020): a sparse plain network whose weights move. SSVI (Li et al. 2024) compares itself with it."""

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
    """A sparse network without randomness: it drops its smallest weights and adds those with the largest gradient."""

    name = "rigl"
    density: float = option(0.05, "The share of the weights that is stored; all others are zero.", within="(0, 1]")
    layout: Literal["uniform", "erdos_renyi"] = option(
        "uniform",
        "How the stored weights are divided among layers: with the same density (uniform), or more densely in small "
        "layers (erdos_renyi).",
    )
    block: int = option(
        1,
        "How many neighbouring output channels are stored together. Steps are faster with 16, and 1 stores single "
        "weights.",
        within="[1, inf)",
    )
    rate: float = option(
        0.3,
        "The share of the stored weights that the first move exchanges; it falls to 0 along a cosine.",
        within="[0, 1]",
    )
    every: int | None = option(
        None, "How many training steps lie between two moves. By default there are about 40 moves.", within="[1, inf)"
    )
    stop: float = option(0.75, "The share of training after which nothing moves.", within="[0, 1]")

    def __post_init__(self) -> None:
        sparse(self.density, layout=self.layout, block=self.block)
        self.rewiring(1)

    def train(self, task: Task, run: Run) -> nn.Module:
        """Train for all epochs on the likelihood."""
        model = make_sparse(run.new_model(task), self.density, layout=self.layout, seed=run.seed, block=self.block)
        steps = run.budget.epochs * len(run.loader(task.train))
        run.fit(model, task, self.name, run.budget.epochs, rewire=self.rewiring(steps))
        return model

    def rewiring(self, steps: int) -> Rewire:
        """Return how weights move: the smallest go, and those with the largest gradient come."""
        every = interval(steps, self.stop) if self.every is None else self.every
        return Rewire("magnitude", rate=self.rate, every=every, stop=self.stop)
