"""Deep ensembles (Lakshminarayanan et al. 2017), as in sensitivity-guided subnetworks, appendix H.5: five members."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from leanbayes.baselines import Ensemble
from leanbayes.errors import InputError
from leanbayes.lab.data.task import Task
from leanbayes.lab.processes import worker_processes
from leanbayes.lab.recipes.base import Recipe, Run, option
from leanbayes.lab.recipes.deterministic import Deterministic
from leanbayes.lab.recipes.relative import RelativeCost
from leanbayes.storage import load, save

__all__ = ["EnsembleRecipe"]


@dataclass(frozen=True)
class EnsembleRecipe(Recipe):
    """Several networks, trained from different seeds; their predictions are averaged."""

    name = "ensemble"
    of: str = option(
        "deterministic",
        "The recipe of each member: deterministic for plain networks, or another one such as lean, with at most one "
        "option of its own: of=lean:rate=0.01.",
    )
    members: int = option(5, "How many networks the ensemble has.", within="[2, inf)")
    processes: int = option(1, "How many networks are trained at once, each in its own process.", within="[1, inf)")

    def __post_init__(self) -> None:
        if self.members < 2 or self.processes < 1:
            raise InputError(f"need at least 2 members and 1 process, got {self.members} and {self.processes}")
        self._recipe()

    def train(self, task: Task, run: Run) -> nn.Module:
        """Train the members: five have the seeds 0 to 4 in a run of seed 0, and 5 to 9 in a run of seed 1.

        The ensemble predicts one member after the other, because the choice by a clock would not give the same digits
        each time.
        """
        if self.processes > 1:
            return Ensemble(*self._apart(task, run), method="loop")
        members = []
        for index in range(self.members):
            member_run = run.member(index, self.members)
            members.append(self._recipe().train(task, member_run))
            run.seconds += member_run.seconds
            run.scales |= {f"member {index} {stage}": scales for stage, scales in member_run.scales.items()}
        return Ensemble(*members, method="loop")

    def networks(self) -> int:
        """Return how many networks are trained, those of each member."""
        return self.members * self._recipe().networks()

    def least_epochs(self) -> int:
        """Return how many epochs each member needs."""
        return self._recipe().least_epochs()

    def relative_cost(self) -> RelativeCost | None:
        """Return the row of Table 1 of sensitivity-guided subnetworks for this method, which is for plain members."""
        if self.of != Deterministic.name:
            return None
        return RelativeCost(self.members, 3 * self.members, self.members)

    def _recipe(self) -> Recipe:
        from leanbayes.lab.recipes.specification import parse  # the catalogue behind it lists this module

        return parse(self.of)

    def _apart(self, task: Task, run: Run) -> list[nn.Module]:
        """Train each member in its own process, which leaves it in a file."""
        with _folder_for(run) as folder, run.charged():
            files = [folder / f"{index}.lb" for index in range(self.members)]
            runs = [
                replace(run.member(index, self.members), watch=None, watch_epochs=None) for index in range(self.members)
            ]
            threads = max(1, torch.get_num_threads() // self.processes)
            with worker_processes(self.processes, threads) as pool:
                jobs = [pool.submit(_train_member, self._recipe(), task, *job) for job in zip(runs, files, strict=True)]
                for job in jobs:
                    job.result()
            return [load(file, task.model()) for file in files]


@contextmanager
def _folder_for(run: Run) -> Iterator[Path]:
    """The folder for the members' files: that of the checkpoints, which nothing outlives, or else one of the system."""
    if run.folder is None:
        with tempfile.TemporaryDirectory() as name:
            yield Path(name)
        return
    folder = run.folder / "members"
    folder.mkdir(parents=True, exist_ok=True)
    yield folder


def _train_member(recipe: Recipe, task: Task, run: Run, file: Path) -> None:
    save(recipe.train(task, run), file)
