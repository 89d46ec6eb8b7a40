"""Random layers: by default the last one (Harrison et al. 2024)."""

from dataclasses import dataclass

from torch import nn

from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes.base import Run, option
from leanbayes.lab.recipes.variational import Variational
from leanbayes.subspace import Subspace, last_layer, layers

__all__ = ["Layers"]


@dataclass(frozen=True)
class Layers(Variational):
    """Chosen layers are random, by default the last one."""

    name = "layers"
    globs: str = option(
        "last",
        "Which layers are random: last, or names of modules or parameters, with spaces between them; * and ? stand for "
        "any text and any letter.",
    )

    def subspace(self, model: nn.Module, task: Task, run: Run) -> Subspace:  # noqa: ARG002
        """Choose the named layers."""
        return layers(*([last_layer(model)] if self.globs == "last" else self.globs.split()))
