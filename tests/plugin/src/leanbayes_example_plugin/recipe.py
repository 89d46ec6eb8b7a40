"""A recipe: the layer with the most weights is random."""

from dataclasses import dataclass

from torch import nn

from leanbayes.lab.data import Task
from leanbayes.lab.recipes import Run, option
from leanbayes.lab.recipes.variational import Variational
from leanbayes.subspace import Subspace, layers


@dataclass(frozen=True)
class Widest(Variational):
    """The layer with the most weights is random."""

    name = "widest"
    init_scale: float = option(0.02, "Where the scales of the random weights start.")

    def subspace(self, model: nn.Module, task: Task, run: Run) -> Subspace:
        name, _ = max(model.named_parameters(), key=lambda item: item[1].numel())
        return layers(name)
