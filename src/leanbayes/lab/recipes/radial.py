"""Radial posteriors with a Monte Carlo KL of many draws (Nazarovs et al. 2021; Farquhar et al. 2020)."""

from dataclasses import dataclass

from torch import nn

from leanbayes.errors import InputError
from leanbayes.kl import Estimator, MonteCarlo
from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes.base import Run, option
from leanbayes.lab.recipes.variational import KL_END_HELP, Variational
from leanbayes.posteriors import Family, Radial
from leanbayes.subspace import Subspace, everything

__all__ = ["RadialRecipe"]


@dataclass(frozen=True)
class RadialRecipe(Variational):
    """Every weight is random, at a distance from its mean that does not grow with the number of weights."""

    name = "radial"
    kl_end: float | None = option(0.01, KL_END_HELP, within="[0, inf)")
    init_scale: float = option(
        0.5,
        "Where the scales start. They scale a radius that all weights of a tensor share, so they start larger. On "
        "tables with little noise 0.1 was better, on images 0.5.",
        within="(0, inf)",
    )
    kl_draws: int = option(
        100,
        "How many draws the Monte Carlo estimate of the KL averages; its time does not grow with them.",
        within="[1, inf)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kl_draws < 1:
            raise InputError(f"kl_draws must be at least 1, got {self.kl_draws}")

    def subspace(self, model: nn.Module, task: Task, run: Run) -> Subspace:  # noqa: ARG002
        """Choose every weight."""
        return everything()

    def posterior(self) -> Family:
        """Return the radial family."""
        return Radial(self.initial_scale())

    def estimator(self) -> Estimator:
        """Return the estimator, which draws the radii and integrates the directions out."""
        return MonteCarlo(self.kl_draws)
