"""Radial posteriors with a Monte Carlo KL of many draws (003; Farquhar et al. 2020)."""

from dataclasses import dataclass

from torch import nn

from leanbayes.errors import InputError
from leanbayes.kl import Estimator, MonteCarlo
from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes.base import Run, option
from leanbayes.lab.recipes.variational import Variational
from leanbayes.posteriors import Family, Radial
from leanbayes.subspace import Subspace, everything

__all__ = ["RadialRecipe"]


@dataclass(frozen=True)
class RadialRecipe(Variational):
    """Every weight random, at a distance from its mean that does not grow with their number."""

    name = "radial"
    kl_end: float | None = option(0.01, "weight of the KL when training ends (000); none: min(1, n/k)")
    init_scale: float = option(0.5, "of the radius of each tensor's noise, which all its weights share")
    kl_draws: int = option(100, "of the Monte Carlo KL; its time does not grow with them")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kl_draws < 1:
            raise InputError(f"kl_draws must be at least 1, got {self.kl_draws}")

    def subspace(self, model: nn.Module, task: Task, run: Run) -> Subspace:  # noqa: ARG002
        """All of them."""
        return everything()

    def posterior(self) -> Family:
        """Radial."""
        return Radial(self.init_scale)

    def estimator(self) -> Estimator:
        """Statistics of so many draws from their law, known closely enough: see `Radial`."""
        return MonteCarlo(self.kl_draws, statistics="sampled")
