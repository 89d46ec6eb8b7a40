"""The linearised Laplace approximation, by laplace-torch (Daxberger et al. 2021): of the last layer or a subnetwork."""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from leanbayes.baselines import LaplaceApproximation
from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes.base import Recipe, Run, option
from leanbayes.subspace import sensitivity, top_k

__all__ = ["LaplaceRecipe"]


@dataclass(frozen=True)
class LaplaceRecipe(Recipe):
    """A Gaussian around the trained weights, whose covariance follows from the curvature of the loss."""

    name = "laplace"
    subset: Literal["last_layer", "subnetwork"] = option(
        "last_layer",
        "Which weights are random: those of the last layer (last_layer), or the most sensitive ones (subnetwork).",
    )
    rate: float = option(0.01, "The share of the weights that a subnetwork holds.", within="(0, 1]")

    def train(self, task: Task, run: Run) -> nn.Module:
        """Train the plain network for all epochs, then compute the curvature."""
        model = run.plain(task, run.budget.epochs)
        batches = run.tracked(task.train, "curvature")
        with run.charged():
            chosen = None
            if self.subset == "subnetwork":
                chosen = top_k(sensitivity(model, batches, task.likelihood), rate=self.rate)
            return LaplaceApproximation.fit(model, batches, task.likelihood, subset=self.subset, indices=chosen)
