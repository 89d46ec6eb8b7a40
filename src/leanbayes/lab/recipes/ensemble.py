"""Deep ensembles (Lakshminarayanan et al. 2017), as 001's appendix H.5: five members, seeded 0 to 4."""

import multiprocessing
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from leanbayes.baselines import Ensemble
from leanbayes.errors import InputError
from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes.base import Recipe, Run, option
from leanbayes.lab.recipes.relative import RelativeCost
from leanbayes.storage import load, save

__all__ = ["EnsembleRecipe"]


@dataclass(frozen=True)
class EnsembleRecipe(Recipe):
    """Several networks that differ by their seeds."""

    name = "ensemble"
    members: int = option(5, "networks")
    processes: int = option(1, "networks trained at once, each in a process of its own")

    def __post_init__(self) -> None:
        if self.members < 2 or self.processes < 1:
            raise InputError(f"need at least 2 members and 1 process, got {self.members} and {self.processes}")

    def train(self, task: Task, run: Run) -> nn.Module:
        """Members with seeds 0 to 4 (5 to 9 for the next seed of the run)."""
        if self.processes > 1:
            return Ensemble(*self._apart(task, run))
        members = []
        for index in range(self.members):
            own = run.member(index, self.members)
            members.append(own.plain(task, run.budget.epochs))
            run.seconds += own.seconds
        return Ensemble(*members)

    def relative_cost(self) -> RelativeCost:
        """Return the row of Table 1 of sensitivity-guided subnetworks for this method."""
        return RelativeCost(self.members, 3 * self.members, self.members)

    def _apart(self, task: Task, run: Run) -> list[nn.Module]:
        """Each member in a process, which leaves it in a file."""
        with tempfile.TemporaryDirectory() as name, run.charged():
            files = [Path(name) / f"{index}.lb" for index in range(self.members)]
            runs = [replace(run.member(index, self.members), watch=None) for index in range(self.members)]
            threads = max(1, torch.get_num_threads() // self.processes)
            spawn = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(self.processes, mp_context=spawn) as pool:
                jobs = [pool.submit(_member, task, *job, threads) for job in zip(runs, files, strict=True)]
                for job in jobs:
                    job.result()
            return [load(file, task.model()) for file in files]


def _member(task: Task, run: Run, file: Path, threads: int) -> None:
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)
    save(run.plain(task, run.budget.epochs), file)
