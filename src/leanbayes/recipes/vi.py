"""Mean-field variational inference over every weight (Blundell et al. 2015)."""

from dataclasses import dataclass

from torch import nn

from leanbayes.data.task import Task
from leanbayes.evaluate.cost import Relative, table_1
from leanbayes.recipes.base import Run
from leanbayes.recipes.variational import Variational
from leanbayes.subspace import Subspace, everything

__all__ = ["VI"]


@dataclass(frozen=True)
class VI(Variational):
    """Every weight random."""

    name = "vi"

    def subspace(self, model: nn.Module, task: Task, run: Run) -> Subspace:  # noqa: ARG002
        """All of them."""
        return everything()

    def formula(self) -> Relative:
        """001, Table 1."""
        return table_1("vi", samples=self.draws)
