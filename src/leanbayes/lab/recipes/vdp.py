"""VDP++: mean and variance of every weight are trained through propagated moments, and predict in one pass.

As published, with first-order activations, independent units and positions, and its own likelihood, it is
``vdp:order=taylor,rank=0,positions=independent,kernels=exact,likelihood=moment``.
"""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes.base import Run, option
from leanbayes.lab.recipes.variational import KL_END_HELP, Variational
from leanbayes.likelihood import Likelihood
from leanbayes.likelihood.moment import MeanCrossEntropy, MomentLikelihood
from leanbayes.posteriors import Family, Normal
from leanbayes.subspace import Subspace, everything

__all__ = ["VDP"]


@dataclass(frozen=True)
class VDP(Variational):
    """Every weight is random, and no weight is drawn: means and variances pass through the network."""

    name = "vdp"
    kl_end: float | None = option(0.01, KL_END_HELP, within="[0, inf)")
    propagate: str = option("moments", "How randomness passes through the network in training and prediction.")
    draws: int = option(
        4, "How many draws of the outputs each training step averages; weights are not drawn.", within="[1, inf)"
    )
    likelihood: Literal["expected", "mean", "moment"] = option(
        "expected",
        "What training scores: drawn outputs (expected), the cross-entropy of the mean probabilities (mean), or the "
        "Gaussian likelihood of VDP++, eq. 11 (moment).",
    )
    per: Literal["weight", "filter"] = option("weight", "What has its own scale: each weight, or each filter (output).")

    def subspace(self, model: nn.Module, task: Task, run: Run) -> Subspace:  # noqa: ARG002
        """Choose every weight."""
        return everything()

    def posterior(self) -> Family:
        """Return the Normal family with one scale for each weight or for each filter."""
        return Normal(self.initial_scale(), per=self.per)

    def likelihood_of(self, task: Task) -> Likelihood:
        """Return the likelihood of training; predictions use that of the task."""
        if self.likelihood == "expected":
            return task.likelihood
        return (MeanCrossEntropy if self.likelihood == "mean" else MomentLikelihood)(task.likelihood)
