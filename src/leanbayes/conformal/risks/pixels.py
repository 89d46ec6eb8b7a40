"""Risks that count pixels, or labels."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from leanbayes.conformal.risks.risk import Risk
from leanbayes.metrics.nested_masks import Masks

__all__ = ["DiceLoss", "FalseNegatives", "FalsePositives"]


@dataclass(frozen=True)
class FalseNegatives(Risk):
    """The share of the true pixels that the mask misses; 0 for a case without any."""

    name: ClassVar[str] = "false_negatives"
    as_masks_grow: ClassVar[Literal["falls", "rises"] | None] = "falls"

    def losses(self, masks: Masks) -> Tensor:
        """Return 1 − |mask ∩ truth|/|truth|."""
        positives = masks.positives[:, None].double()
        hit = masks.right / positives.clamp_min(1)
        return hit.neg_().add_(positives > 0)


@dataclass(frozen=True)
class FalsePositives(Risk):
    """The falsely marked pixels as a share of the size of the truth, at most 1.

    A mask that marks anything in a case without any true pixel loses 1.
    """

    name: ClassVar[str] = "false_positives"
    as_masks_grow: ClassVar[Literal["falls", "rises"] | None] = "rises"

    def losses(self, masks: Masks) -> Tensor:
        """Return min(1, |mask without truth|/|truth|)."""
        return (masks.wrong / masks.positives[:, None].clamp_min(1).double()).clamp_max(1)


@dataclass(frozen=True)
class DiceLoss(Risk):
    """One minus the Dice score; 0 if both masks are empty. It may fall and rise as the mask grows."""

    name: ClassVar[str] = "dice"
    as_masks_grow: ClassVar[Literal["falls", "rises"] | None] = None

    def losses(self, masks: Masks) -> Tensor:
        """Return 1 − 2 |mask ∩ truth|/(|mask| + |truth|)."""
        sizes = (masks.right + masks.wrong + masks.positives[:, None]).double()
        return torch.where(sizes > 0, 1 - 2 * masks.right / sizes.clamp_min(1), 0.0)
