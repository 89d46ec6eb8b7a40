"""The risk of missing whole lesions."""

import math
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
        steps = torch.arange(len(GRID), device=reached.device)
        rows = []
        for number, of_case in zip(numbers, reached, strict=True):
            names = number[number > 0].unique().tolist()
            parts = [of_case[number == name] for name in names]
            # A lesion is found at the thresholds that the k-th highest of its pixels reaches.
            ends = [part.topk(max(1, math.ceil(self.overlap * len(part) - 1e-9))).values[-1] for part in parts]
            missed = [(steps >= end).double() for end in ends]
            rows.append(torch.stack(missed).mean(0) if missed else torch.zeros_like(steps, dtype=torch.float64))
        return torch.stack(rows)
