"""SSVI, sparse-subspace variational inference (Li et al. 2024): few weights exist, they are random, and they move."""

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
    """A network that is sparse from start to end, and whose stored weights are random."""

    name = "ssvi"
    density: float = option(0.05, "The share of the weights that is stored; all others are zero.", within="(0, 1]")
    layout: Literal["uniform", "erdos_renyi"] = option(
        "uniform",
        "How the stored weights are divided among layers: with the same density (uniform), or more densely in small "
        "layers (erdos_renyi).",
    )
    block: int = option(
        1,
        "How many neighbouring output channels are stored together. Steps are faster with 16, and 1 stores single "
        "weights.",
        within="[1, inf)",
    )
    removal: str = option("snr_magnitude", f"Which weights go: those with the lowest {', '.join(REMOVAL)}.")
    addition: Literal["draw", "mean", "draws"] = option(
        "draw",
        "Which weights come: those with the largest gradient for one draw (draw), for the mean (mean), or over several "
        "pairs of a draw and a batch (draws).",
    )
    pairs: int = option(
        4, "How many pairs of a draw and a batch addition=draws looks at in each move.", within="[1, inf)"
    )
    rate: float = option(
        0.3,
        "The share of the stored weights that the first move exchanges; it falls to 0 along a cosine.",
        within="[0, 1]",
    )
    every: int | None = option(
        None, "How many training steps lie between two moves. By default there are about 40 moves.", within="[1, inf)"
    )
    stop: float = option(0.75, "The share of training after which nothing moves.", within="[0, 1]")
    pretrain: float = option(
        0.0,
        "The share of the epochs for which a dense network is trained first, which costs what this recipe saves.",
        within="[0, 1)",
    )
    kl_start: float = option(
        0.0, "The weight of the KL divergence grows from 0; other values are refused.", within="[0, inf)"
    )
    kl_end: float = option(
        0.01, "The weight of the KL divergence from half of training on; 1 is the true ELBO.", within="[0, inf)"
    )
    propagate: str = option(
        "mirrored",
        "How randomness passes through the network in training: sample, mirrored, local (as in the paper), flipout or "
        "moments.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.removal not in REMOVAL:
            raise UnknownName.of("removal criterion", self.removal, REMOVAL)
        if self.kl_start:
            raise InputError(f"the weight of the KL grows from 0 to kl_end; leave kl_start 0, got {self.kl_start}")
        sparse(self.density, layout=self.layout, block=self.block)  # refuses bad values now, and not after a training
        self.rewiring(1)

    def subspace(self, model: nn.Module, task: Task, run: Run) -> Subspace:  # noqa: ARG002
        """Choose random positions, or the positions of the largest weights of a trained network."""
        start: Literal["magnitude", "random"] = "magnitude" if self.pretrain else "random"
        return sparse(self.density, layout=self.layout, start=start, seed=run.seed, block=self.block)

    def kl_schedule(self, balanced: float) -> Schedule:  # noqa: ARG002
        """Let the weight of the KL divergence grow until half of training (SSVI, section 4.1)."""
        return warm_up(0.5, self.kl_end)

    def rewiring(self, steps: int) -> Rewire:
        """Return how weights move in a training of so many steps."""
        every = interval(steps, self.stop) if self.every is None else self.every
        return Rewire(self.removal, self.addition, self.pairs, rate=self.rate, every=every, stop=self.stop)


def interval(steps: int, stop: float) -> int:
    """Return the steps between two moves, so that there are about 40 moves.

    >>> interval(10_000, 0.75)
    188
    """
    return max(1, round(stop * steps / 40))
