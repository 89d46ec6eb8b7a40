"""A recipe that goes on top of another one: ``vi+halved:by=3``."""

from dataclasses import dataclass, field, replace

from torch import nn

from leanbayes.lab.data import Task
from leanbayes.lab.recipes import OnTop, Recipe, Run, option
from leanbayes.lab.recipes.deterministic import Deterministic


@dataclass(frozen=True)
class Halved(OnTop):
    """The recipe underneath, trained with a part of the batch size."""

    name = "halved"
    of: Recipe = field(default_factory=Deterministic)
    by: int = option(2, "What the batch size is divided by.")

    def train(self, task: Task, run: Run) -> nn.Module:
        whole = run.budget
        run.budget = replace(whole, batch_size=max(1, whole.batch_size // self.by))
        try:
            return self.of.train(task, run)
        finally:
            run.budget = whole
