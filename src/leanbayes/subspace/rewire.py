"""When and how sparse weights move (SSVI, Li et al. 2024, section 3.3).

The least important stored weights make room for weights for which the loss has a large gradient.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from leanbayes.errors import InputError, UnknownName
from leanbayes.subspace.blocks import Blocks
from leanbayes.subspace.removal import REMOVAL, removal_scores, removed

__all__ = ["Move", "Rewire", "plan_move"]


@dataclass(frozen=True)
class Rewire:
    """When and how sparse weights move. The number of stored weights of each layer never changes.

    Weights that are stored in blocks move as whole blocks. `leaving` and `plan_move` say how a block is scored.

    Args:
        removal: the criterion by which weights are removed, one of `REMOVAL` (Li et al. 2024, section 3.3.1). A model
            that is not Bayesian has only "magnitude".
        addition: the gradient by which weights are added (section 3.3.2, criteria 1 to 3): "draw" takes the gradient of
            one draw, "mean" the gradient at the means, and "draws" the mean size of the gradients of several pairs of a
            draw and a batch.
        draws: how many pairs ``addition="draws"`` takes, K in the paper. Each has another draw and another batch: the
            batch of the step, and the K − 1 batches that follow it in the epoch, where after the last comes the first.
            `fit` reads these K − 1 batches at each move and at no other time. An epoch of fewer than K batches gives
            some of them twice.
        rate: the share of a layer's weights that the first moves replace. It falls to 0 as half a cosine (RigL, Evci et
            al. 2020).
        every: how many optimizer steps lie between two moves.
        stop: the share of training after which nothing moves any more.
        new_scale: the scale of added weights: "mean" for the mean scale of the layer (section 3.2), or a number.
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

    @property
    def batches(self) -> int:
        """How many batches one move looks at.

        >>> Rewire().batches, Rewire(addition="draws", draws=3).batches
        (1, 3)
        """
        return self.draws if self.addition == "draws" else 1

    def due(self, step: int, steps: int) -> bool:
        """Return whether weights move after ``step`` of ``steps`` optimizer steps.

        >>> [step for step in range(1, 1001) if Rewire(every=250).due(step, 1000)]
        [250, 500]
        """
        return step % self.every == 0 and step < self.stop * steps

    def rate_at(self, step: int, steps: int) -> float:
        """Return the share of a layer's weights that moves after ``step`` of ``steps`` optimizer steps.

        >>> [round(Rewire().rate_at(step, 1000), 3) for step in (0, 375, 750)]
        [0.3, 0.15, 0.0]
        """
        return self.rate / 2 * (1 + math.cos(math.pi * min(1.0, step / (self.stop * steps))))

    def leaving(self, mean: Tensor, scale: Tensor | None, share: float, blocks: Tensor | None = None) -> Tensor:
        """Return which stored weights of a layer may go, as sorted positions among the stored ones.

        A block goes as a whole. Its score is the sum of the scores of its weights, as the table of
        `leanbayes.subspace.removal` defines them. For "magnitude" this is the sum of |μ|, and for "snr_magnitude" the
        sum of SNR(|θ|) up to a constant. For "expected_exponential" it is the logarithm of E e^{λ Σ|θ|}, as the weights
        of a block are independent.

        Args:
            mean: the means of the stored weights.
            scale: their scales, or None if they are not random.
            share: the share of them that may go.
            blocks: where the weights of each block are among the stored ones, one row for each block
                (`leanbayes.subspace.blocks.Blocks.places`); None if each weight stands alone.
        """
        scores = removal_scores(self.removal, mean, scale, rate=self.exponent)
        if blocks is None:
            return removed(scores, int(share * mean.numel()))
        chosen = removed(scores[blocks].sum(1), int(share * len(blocks)))
        return blocks[chosen].flatten().sort().values


@dataclass(frozen=True)
class Move:
    """What a move does to one layer.

    Attributes:
        index: the flat positions of the stored weights after the move, sorted.
        source: for each stored weight, where it was among the stored weights before the move; −1 if it is new.
    """

    index: Tensor
    source: Tensor

    @property
    def arrived(self) -> Tensor:
        """Which stored weights are new, as a mask."""
        return self.source < 0

    def carried(self, values: Tensor, new: float | Tensor = 0.0) -> Tensor:
        """Bring numbers of the stored weights to their new places; new weights get ``new``."""
        moved = values.index_select(0, self.source.clamp_min(0))
        return torch.where(self.arrived, torch.as_tensor(new, dtype=values.dtype, device=values.device), moved)


def plan_move(index: Tensor, leaving: Tensor, gradient: Tensor, blocks: Blocks | None = None) -> Move:
    """Plan the move of one layer: remove weights, then add as many of all that are zero after that.

    The weights with the largest gradients are added, or the blocks with the largest sum of |gradient|. What is removed
    and added at once stays as it is.

    Args:
        index: the flat positions of the stored weights.
        leaving: which of them are removed, as positions among the stored weights; whole blocks.
        gradient: the gradient of the dense weight.
        blocks: the blocks of the weight; None if each weight stands alone.

    >>> move = plan_move(torch.tensor([1, 2, 5]), torch.tensor([0]), torch.tensor([0.0, 1.0, 0.0, 9.0, 0.0, 0.0]))
    >>> move.index, move.source
    (tensor([2, 3, 5]), tensor([ 1, -1,  2]))
    """
    blocks = blocks or Blocks(tuple(gradient.shape))
    scores = blocks.sums(gradient.detach().abs())
    stays = torch.ones(len(index), dtype=torch.bool, device=index.device)
    stays[leaving] = False
    heads = blocks.places(index)[:, 0]  # the first weight of each block stands for it
    staying = blocks.numbers(index[heads[stays[heads]]])
    scores = scores.index_fill(0, staying.long(), -1.0)
    arriving = scores.topk(len(leaving) // blocks.size).indices
    after = blocks.positions(torch.cat([staying, arriving.to(index.dtype)]))
    position = torch.searchsorted(index, after).clamp_max(len(index) - 1)
    return Move(after, torch.where(index[position] == after, position, -1))


Moves = Mapping[str, Move]
