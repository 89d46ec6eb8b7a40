"""Partial Bayesian networks (Abboud et al. 2024; sensitivity-guided subnetworks): sensitive weights are random."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from leanbayes.errors import InputError
from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes.base import Run, option
from leanbayes.lab.recipes.relative import RelativeCost
from leanbayes.lab.recipes.variational import Variational
from leanbayes.subspace import Subspace, sensitivity, top_k

__all__ = ["Partial"]


@dataclass(frozen=True)
class Partial(Variational):
    """The weights to which the loss is most sensitive are random; all others are ordinary weights."""

    name = "partial"
    rate: float = option(0.01, "The share of the weights that is random.", within="(0, 1]")
    scope: Literal["global", "layer"] = option(
        "global",
        "Where weights compete: in the whole network (global), or within each layer, at the same rate (layer).",
    )
    score: Literal["absolute", "squared", "output"] = option(
        "absolute",
        "What makes a weight sensitive: the absolute gradient of the loss (absolute, as in sensitivity-guided "
        "subnetworks), its square (squared, as in Abboud et al. 2024), or the squared derivative of the outputs for "
        "each example alone (output, as in eq. 6 of sensitivity-guided subnetworks), which takes a backward pass "
        "for each output of each example.",
    )
    probes: int | None = option(
        None,
        "How many random combinations of the outputs score=output takes in place of all outputs; needed if there are "
        "many, as in segmentation.",
        within="[1, inf)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.probes is not None and (self.score != "output" or self.probes < 1):
            raise InputError(
                f"probes={self.probes} with score={self.score}: probes are a number of at least 1 and belong to "
                "score=output"
            )

    def subspace(self, model: nn.Module, task: Task, run: Run) -> Subspace:
        """Choose the weights with the highest score over the training set."""
        batches = run.tracked(task.train, "sensitivity")
        if self.score == "output":
            source = torch.Generator(next(model.parameters()).device).manual_seed(run.seed)
            scores = sensitivity(
                model, batches, of="output", power=2, per="example", probes=self.probes, generator=source
            )
        else:
            scores = sensitivity(model, batches, task.likelihood, power=1 if self.score == "absolute" else 2)
        return top_k(scores, rate=self.rate, scope=self.scope)

    def relative_cost(self) -> RelativeCost:
        """Return the row of Table 1 of sensitivity-guided subnetworks for this method."""
        return RelativeCost(1 + self.rate, (1 + self.rate) * (self.draws + 2), 2)
