"""VDP++ (002): mean and variance of every weight are trained through propagated moments, and predict in one pass."""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes.base import Run, option
from leanbayes.lab.recipes.variational import Variational
from leanbayes.likelihood import Likelihood
from leanbayes.likelihood.moment import MeanCrossEntropy, MomentLikelihood
from leanbayes.posteriors import Family, Normal
from leanbayes.subspace import Subspace, everything

__all__ = ["VDP"]


@dataclass(frozen=True)
class VDP(Variational):
    """Every weight random, and not one sample of them drawn."""

    name = "vdp"
    kl_end: float | None = option(0.01, "weight of the KL when training ends (000); none: min(1, n/k)")
    propagate: str = option("moments", "of training and prediction")
    draws: int = option(4, "of the outputs alone, a training step")
    likelihood: Literal["expected", "mean", "moment"] = option(
        "expected", "of drawn outputs (expected), cross-entropy of their mean, or the Gaussian of 002's eq. 11 (moment)"
    )
    per: Literal["weight", "filter"] = option("weight", "weight, or filter: one variance for each output")

    def subspace(self, model: nn.Module, task: Task, run: Run) -> Subspace:  # noqa: ARG002
        """All of them."""
        return everything()

    def posterior(self) -> Family:
        """One scale for each weight or for each filter."""
        return Normal(self.init_scale, per=self.per)

    def likelihood_of(self, task: Task) -> Likelihood:
        """As chosen; predictions are the task's own."""
        if self.likelihood == "expected":
            return task.likelihood
        return (MeanCrossEntropy if self.likelihood == "mean" else MomentLikelihood)(task.likelihood)
