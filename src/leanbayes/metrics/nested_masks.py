"""Masks that grow as a threshold falls: what each of them holds, counted in one pass over the pixels."""

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.errors import ShapeMismatch

__all__ = ["GRID", "Masks", "count_masks", "lesions"]

_STEPS, _WIDEST = 1021, 14.0


def _grid() -> Tensor:
    """Thresholds for scores between 0 and 1, evenly spaced in log-odds; 0 takes every pixel, and 2 takes none."""
    inner = torch.linspace(-_WIDEST, _WIDEST, _STEPS, dtype=torch.float64).sigmoid()
    ends = [torch.tensor([end], dtype=torch.float64) for end in (0.0, 1.0, 2.0)]
    return torch.cat([ends[0], inner, *ends[1:]])


GRID = _grid()
"""The thresholds among which all calibrations choose. They are fixed in advance, as the guarantees ask."""


@dataclass(frozen=True)
class Masks:
    """What the masks of a batch hold at each threshold t of `GRID`; a mask holds the pixels whose score is at least t.

    Attributes:
        reached: for each pixel, how many thresholds its score reaches, (N, ...).
        truth: the true masks, without pixels that do not count, (N, ...).
        others: the other pixels that count, (N, ...).
    """

    reached: Tensor
    truth: Tensor
    others: Tensor

    @cached_property
    def right(self) -> Tensor:
        """How many pixels of the truth each mask holds, (N, thresholds)."""
        return _held(self.reached, self.truth)

    @cached_property
    def wrong(self) -> Tensor:
        """How many other pixels each mask holds, (N, thresholds)."""
        return _held(self.reached, self.others)

    @cached_property
    def positives(self) -> Tensor:
        """How many pixels the truth has, (N,)."""
        return self.truth.flatten(1).sum(1)


def count_masks(scores: Tensor, truth: Tensor, counted: Tensor) -> Masks:
    """Count the pixels of all masks of a batch.

    Args:
        scores: (N, ...) between 0 and 1: a mask takes in the highest ones first.
        truth: (N, ...) booleans.
        counted: (N, ...) booleans: which pixels count.
    """
    if scores.shape != truth.shape:
        raise ShapeMismatch(f"scores have shape {tuple(scores.shape)} and true masks {tuple(truth.shape)}")
    grid = GRID.to(scores.device)
    reached = torch.searchsorted(grid, scores.double().contiguous(), right=True)
    return Masks(reached, truth & counted, counted & ~truth)


def _held(reached: Tensor, chosen: Tensor) -> Tensor:
    """Return how many of the chosen pixels reach each threshold, (N, thresholds)."""
    chosen = chosen.flatten(1).int()
    counts = torch.zeros(len(reached), len(GRID) + 1, dtype=torch.int32, device=reached.device)
    counts.scatter_add_(1, reached.flatten(1), chosen)
    # A pixel that reaches r thresholds reaches those numbered 0 … r − 1.
    return chosen.sum(1, keepdim=True, dtype=torch.int32) - counts[:, :-1].cumsum(1, dtype=torch.int32)


def lesions(truth: Tensor) -> Tensor:
    """Number the connected parts of each mask, (N, H, W) or with another number of axes; 0 is outside.

    Pixels that touch at a corner are connected. The numbers are not consecutive.

    >>> lesions(torch.tensor([[[1, 1, 0, 0, 1]]]).bool())[0, 0].unique().numel() - 1
    2
    """
    axes = truth.dim() - 1
    if not 1 <= axes <= 3:
        raise ShapeMismatch(f"masks must have one to three axes besides that of the batch, got {tuple(truth.shape)}")
    pool = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}[axes]
    each = truth[0].numel()
    numbers = torch.arange(1, each + 1, dtype=torch.float64, device=truth.device).view(truth.shape[1:]) * truth
    while True:  # each number floods its part, and the largest one wins
        grown: Tensor = pool(numbers[:, None], 3, 1, 1)[:, 0] * truth
        if torch.equal(grown, numbers):
            return numbers.long()
        numbers = grown
