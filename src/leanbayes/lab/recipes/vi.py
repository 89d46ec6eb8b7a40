"""Mean-field variational inference over every weight (Blundell et al. 2015)."""

from dataclasses import dataclass

from torch import nn

from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes.base import Run, option
from leanbayes.lab.recipes.relative import RelativeCost
from leanbayes.lab.recipes.variational import KL_END_HELP, Variational
from leanbayes.subspace import Subspace, everything

__all__ = ["VI"]


@dataclass(frozen=True)
class VI(Variational):
    """Every weight is random."""

    name = "vi"
    kl_end: float | None = option(0.01, KL_END_HELP, within="[0, inf)")

    def subspace(self, model: nn.Module, task: Task, run: Run) -> Subspace:  # noqa: ARG002
        """Choose every weight."""
        return everything()

    def relative_cost(self) -> RelativeCost:
        """Return the row of Table 1 of sensitivity-guided subnetworks for this method."""
        return RelativeCost(2, 2 * (self.draws + 2), 2)
