"""A few layers random, by default the last (Harrison et al. 2024 and many others)."""

from dataclasses import dataclass

from torch import nn

from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes.base import Run, option
from leanbayes.lab.recipes.variational import Variational
from leanbayes.subspace import Subspace, last_layer, layers

__all__ = ["Layers"]


@dataclass(frozen=True)
class Layers(Variational):
    """Chosen layers random."""

    name = "layers"
    globs: str = option("last", "names of modules or parameters, with * and ?, divided by spaces; or last")

    def subspace(self, model: nn.Module, task: Task, run: Run) -> Subspace:  # noqa: ARG002
        """The named ones."""
        return layers(*([last_layer(model)] if self.globs == "last" else self.globs.split()))
