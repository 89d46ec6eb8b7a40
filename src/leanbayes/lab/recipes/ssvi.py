"""Sparse-subspace variational inference (004): a few weights are there, they are random, and they move."""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from leanbayes.errors import InputError, UnknownName
from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes.base import Run, option
from leanbayes.lab.recipes.variational import Variational
from leanbayes.objective import Schedule, warm_up
from leanbayes.subspace import REMOVAL, Rewire, Subspace, sparse

__all__ = ["SSVI", "interval"]


@dataclass(frozen=True)
class SSVI(Variational):
    """A sparse network from start to end, its weights random."""

    name = "ssvi"
    density: float = option(0.05, "share of the weights that is stored; the others are zero")
    layout: Literal["uniform", "erdos_renyi"] = option("uniform", "the same density in each layer, or erdos_renyi")
    removal: str = option("snr_magnitude", f"criterion of the weights that go: {', '.join(REMOVAL)}")
    addition: Literal["draw", "mean", "draws"] = option("draw", "gradient of those that come: draw, mean or draws")
    rate: float = option(0.3, "share of the weights that moves at first; it falls to 0 as a cosine")
    every: int | None = option(None, "steps between two moves; by default there are about 40 moves")
    stop: float = option(0.75, "share of training after which nothing moves")
    pretrain: float = option(0.0, "of a dense network, which costs what this recipe is there to save")
    kl_start: float = option(0.0, "the weight of the KL grows from 0")
    kl_end: float = option(0.01, "weight of the KL from half of training on; 1 is the true ELBO")
    propagate: str = option("local", "sample, local, flipout or moments")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.removal not in REMOVAL:
            raise UnknownName.of("removal criterion", self.removal, REMOVAL)
        if self.kl_start:
            raise InputError(f"the weight of the KL grows from 0 to kl_end; leave kl_start 0, got {self.kl_start}")
        sparse(self.density, layout=self.layout)  # what it has to say of bad values, it says now
        self.rewiring(1)

    def subspace(self, model: nn.Module, task: Task, run: Run) -> Subspace:  # noqa: ARG002
        """Random positions; of a trained network the largest weights."""
        return sparse(self.density, layout=self.layout, start="magnitude" if self.pretrain else "random", seed=run.seed)

    def kl_schedule(self, balanced: float) -> Schedule:  # noqa: ARG002
        """Warm-up (004, section 4.1)."""
        return warm_up(0.5, self.kl_end)

    def rewiring(self, steps: int) -> Rewire:
        """As chosen."""
        every = interval(steps, self.stop) if self.every is None else self.every
        return Rewire(self.removal, self.addition, rate=self.rate, every=every, stop=self.stop)


def interval(steps: int, stop: float) -> int:
    """Steps between two of about 40 moves.

    >>> interval(10_000, 0.75)
    188
    """
    return max(1, round(stop * steps / 40))
