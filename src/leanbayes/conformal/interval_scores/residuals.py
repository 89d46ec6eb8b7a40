"""Intervals around the predicted mean: of one width, or as wide as the predicted deviation (Lei et al. 2018)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leanbayes.conformal.interval_scores.score import IntervalScore
from leanbayes.errors import InputError
from leanbayes.prediction import Prediction

__all__ = ["Absolute", "Scaled"]


@dataclass(frozen=True)
class Absolute(IntervalScore):
    """The residual |y − mean|. All intervals have one width, whatever the uncertainty."""

    name: ClassVar[str] = "absolute"

    def interval(self, prediction: Prediction, level: float) -> tuple[Tensor, Tensor, Tensor]:  # noqa: ARG002
        """Return the mean as both ends, and 1 as the unit."""
        return prediction.mean, prediction.mean, torch.ones_like(prediction.mean)


@dataclass(frozen=True)
class Scaled(IntervalScore):
    """The residual in predicted standard deviations, |y − mean|/deviation.

    Intervals are wide where the model is unsure.

    Args:
        by: which variance the deviation is the root of: "total", "aleatoric" or "epistemic".
        floor: is added to the deviation, in the unit of the target, so that no interval is a point.
    """

    name: ClassVar[str] = "scaled"
    by: str = "total"
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.by not in ("total", "aleatoric", "epistemic") or not 0 <= self.floor < torch.inf:
            raise InputError(
                f'by must be "total", "aleatoric" or "epistemic" and floor at least 0, got {self.by!r} and {self.floor}'
            )

    def interval(self, prediction: Prediction, level: float) -> tuple[Tensor, Tensor, Tensor]:  # noqa: ARG002
        """Return the mean as both ends, and the deviation as the unit."""
        deviation = getattr(prediction, self.by).clamp_min(0).sqrt() + self.floor
        if not (deviation > 0).all():
            raise InputError(
                f"the {self.by} deviation of a prediction is 0, so no residual can be divided by it; give a floor: "
                "Scaled(floor=...)"
            )
        return prediction.mean, prediction.mean, deviation
