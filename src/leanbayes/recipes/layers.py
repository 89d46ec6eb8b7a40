"""A few layers random, by default the last (Harrison et al. 2024 and many others)."""

from dataclasses import dataclass

from torch import nn

from leanbayes.data.task import Task
from leanbayes.errors import InputError
from leanbayes.recipes.base import Run, option
from leanbayes.recipes.variational import Variational
from leanbayes.subspace import Subspace, layers

__all__ = ["Layers", "last_layer"]


@dataclass(frozen=True)
class Layers(Variational):
    """Chosen layers random."""

    name = "layers"
    globs: str = option("last", "names of modules or parameters, with * and ?, divided by spaces; or last")

    def subspace(self, model: nn.Module, task: Task, run: Run) -> Subspace:  # noqa: ARG002
        """The named ones."""
        return layers(*([last_layer(model)] if self.globs == "last" else self.globs.split()))


def last_layer(model: nn.Module) -> str:
    """The name of the last module that holds a weight matrix or kernel.

    >>> last_layer(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1), nn.BatchNorm1d(1)))
    '2'
    """
    names: list[str] = [
        name
        for name, module in model.named_modules()
        if any(parameter.dim() > 1 for parameter in module.parameters(recurse=False))
    ]
    if not names or not names[-1]:
        raise InputError("the model has no inner layer with a weight matrix; name the random parts with globs=")
    return names[-1]
