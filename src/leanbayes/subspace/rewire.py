"""Rewiring (004, section 3.3): the least important stored weights make room for those that the loss asks for."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from leanbayes.errors import InputError, UnknownName
from leanbayes.subspace.removal import REMOVAL, removal_scores, removed

__all__ = ["Move", "Rewire", "plan_move"]


@dataclass(frozen=True)
class Rewire:
    """When and how a sparse subspace moves. At every step exactly as many weights are stored as before.

    Args:
        removal: by which criterion weights go, of `REMOVAL` (004, section 3.3.1); a model that is not Bayesian has only
            "magnitude".
        addition: by which gradient weights come: "draw", of one draw and batch, "mean", at the mean, or "draws", the
            mean size of several draws' gradients (004, section 3.3.2, criteria 1 to 3).
        draws: how many of them; only for "draws".
        rate: share of a layer's weights that is replaced at first; it falls to 0 as half a cosine (Evci et al. 2020).
        every: optimizer steps between two moves.
        stop: share of training after which nothing moves any more.
        new_scale: of weights that come: "mean", that of the layer's weights (004, section 3.2), or a small number.
        exponent: λ of the criteria with e^{λ|θ|}.
    """

    removal: str = "snr_magnitude"
    addition: Literal["draw", "mean", "draws"] = "draw"
    draws: int = 4
    rate: float = 0.3
    every: int = 100
    stop: float = 0.75
    new_scale: float | Literal["mean"] = "mean"
    exponent: float = 1.0

    def __post_init__(self) -> None:
        if self.removal not in REMOVAL:
            raise UnknownName.of("removal criterion", self.removal, REMOVAL)
        if self.addition not in ("draw", "mean", "draws"):
            raise UnknownName.of("addition criterion", self.addition, ["draw", "mean", "draws"])
        if self.draws < 1 or self.every < 1:
            raise InputError(f"draws and every must be at least 1, got {self.draws} and {self.every}")
        if not (0 < self.rate < 1 and 0 < self.stop <= 1):
            raise InputError(f"rate must be between 0 and 1, stop above 0 and at most 1; got {self.rate}, {self.stop}")
        if self.new_scale != "mean" and not (isinstance(self.new_scale, int | float) and 0 < self.new_scale < math.inf):
            raise InputError(f'new_scale must be "mean" or a positive number, got {self.new_scale!r}')

    def due(self, step: int, steps: int) -> bool:
        """Whether weights move after so many of all steps.

        >>> [step for step in range(1, 1001) if Rewire(every=250).due(step, 1000)]
        [250, 500]
        """
        return step % self.every == 0 and step < self.stop * steps

    def rate_at(self, step: int, steps: int) -> float:
        """The share that moves then.

        >>> [round(Rewire().rate_at(step, 1000), 3) for step in (0, 375, 750)]
        [0.3, 0.15, 0.0]
        """
        return self.rate / 2 * (1 + math.cos(math.pi * min(1.0, step / (self.stop * steps))))

    def leaving(self, mean: Tensor, scale: Tensor | None, share: float) -> Tensor:
        """Which stored weights may go: the least important of a layer, as sorted positions among the stored ones."""
        scores = removal_scores(self.removal, mean, scale, rate=self.exponent)
        return removed(scores, int(share * mean.numel()))


@dataclass(frozen=True)
class Move:
    """What becomes of one layer: ``index`` after the move, and for each place where its value was before, or −1."""

    index: Tensor
    source: Tensor

    @property
    def arrived(self) -> Tensor:
        """Which places are new."""
        return self.source < 0

    def carried(self, values: Tensor, new: float | Tensor = 0.0) -> Tensor:
        """Numbers of the stored weights, in their new places."""
        kept = values.index_select(0, self.source.clamp_min(0))
        return torch.where(self.arrived, torch.as_tensor(new, dtype=values.dtype, device=values.device), kept)


def plan_move(index: Tensor, leaving: Tensor, gradient: Tensor) -> Move:
    """Remove, then add as many by the size of the gradient of the dense weight, of all that are then zero.

    A weight that left and is asked for at once has not left: it keeps its value.

    >>> move = plan_move(torch.tensor([1, 2, 5]), torch.tensor([0]), torch.tensor([0.0, 1.0, 0.0, 9.0, 0.0, 0.0]))
    >>> move.index, move.source
    (tensor([2, 3, 5]), tensor([ 1, -1,  2]))
    """
    scores = gradient.detach().abs().flatten()
    stays = torch.ones(len(index), dtype=torch.bool, device=index.device)
    stays[leaving] = False
    scores = scores.index_fill(0, index[stays].long(), -1.0)
    arriving = scores.topk(len(leaving)).indices
    after = torch.cat([index[stays], arriving.to(index.dtype)]).sort().values
    place = torch.searchsorted(index, after).clamp_max(len(index) - 1)
    return Move(after, torch.where(index[place] == after, place, -1))


Moves = Mapping[str, Move]
