"""The risk of missing whole lesions."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from leanbayes.conformal.quantiles import check_level
from leanbayes.conformal.risks.risk import Risk
from leanbayes.metrics.nested_masks import GRID, Masks, lesions

__all__ = ["MissedLesions"]


@dataclass(frozen=True)
class MissedLesions(Risk):
    """The share of lesions, the connected parts of the truth, that the mask misses; 0 for a case without any.

    Args:
        overlap: a lesion is found if the mask holds at least this share of its pixels.
    """

    name: ClassVar[str] = "missed_lesions"
    as_masks_grow: ClassVar[Literal["falls", "rises"] | None] = "falls"
    overlap: float = 0.5

    def __post_init__(self) -> None:
        if self.overlap != 1:
            check_level(self.overlap, "overlap")

    def losses(self, masks: Masks) -> Tensor:
        """Return the share of lesions of which fewer pixels than asked reach the threshold."""
        truth = masks.truth.squeeze(1) if masks.truth.dim() == 4 and masks.truth.shape[1] == 1 else masks.truth
        numbers, reached = lesions(truth).flatten(1), masks.reached.flatten(1)
        cases, pixels = (numbers > 0).nonzero(as_tuple=True)
        names, lesion, sizes = (cases * numbers.shape[1] + numbers[cases, pixels] - 1).unique(
            return_inverse=True, return_counts=True
        )
        # A lesion is found at the thresholds that the k-th highest of its pixels reaches.
        highest_first = reached[cases, pixels].argsort(descending=True)
        order = highest_first[lesion[highest_first].argsort(stable=True)]
        needed = (self.overlap * sizes.double() - 1e-9).ceil().clamp_min(1).long()
        ends = reached[cases, pixels][order][sizes.cumsum(0) - sizes + needed - 1]
        missed = torch.zeros(len(numbers), len(GRID) + 1, dtype=torch.float64, device=numbers.device)
        whose = names // numbers.shape[1]
        missed.index_put_((whose, ends), torch.ones_like(ends, dtype=torch.float64), accumulate=True)
        each = torch.bincount(whose, minlength=len(numbers)).clamp_min(1)
        return missed[:, :-1].cumsum(1) / each[:, None]
