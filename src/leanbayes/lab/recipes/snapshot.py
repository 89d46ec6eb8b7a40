"""Snapshot ensembles (Huang et al. 2017b): the networks that one training passes through, predicted as an ensemble."""

import copy
from dataclasses import dataclass

from torch import nn

from leanbayes.baselines import Ensemble
from leanbayes.errors import InputError
from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes.base import Recipe, Run, option
from leanbayes.train.batches import mix

__all__ = ["Snapshot"]


@dataclass(frozen=True)
class Snapshot(Recipe):
    """Several networks from one training, each taken at the end of a cycle of the learning rate."""

    name = "snapshot"
    members: int = option(5, "How many cycles, and so networks, the training has.", within="[2, inf)")
    lr: float | None = option(
        None, "The learning rate at the start of each cycle; by default the budget's.", within="(0, inf)"
    )

    def least_epochs(self) -> int:
        """Return one epoch for each cycle."""
        return self.members

    def train(self, task: Task, run: Run) -> nn.Module:
        """Train one network in cycles, in each of which the learning rate falls to 0 along a cosine.

        All cycles together have the epochs of the budget. Each takes the weights of its best epoch on the validation
        set, as every training here does, and the next cycle goes on from there.
        """
        epochs = run.budget.epochs
        if epochs < self.members:
            raise InputError(
                f"a snapshot ensemble of {self.members} members needs at least as many epochs, got {epochs}; train for "
                "more epochs, or lower members"
            )
        how = {"schedule": "cosine", "patience": None, "lr": run.budget.lr if self.lr is None else self.lr}
        model = run.new_model(task)
        snapshots = []
        for cycle in range(self.members):
            length = epochs * (cycle + 1) // self.members - epochs * cycle // self.members
            seed = mix(
                run.seed, self.name, cycle
            )  # with one seed for all, each cycle would see the data in the same order
            run.fit(model, task, f"{self.name} {cycle + 1}", length, optimization=how, seed=seed)
            snapshots.append(copy.deepcopy(model))
        return Ensemble(*snapshots, method="loop")
