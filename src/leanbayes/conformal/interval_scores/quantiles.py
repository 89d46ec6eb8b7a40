"""Conformalised quantiles (Romano et al. 2019), from the moments of a prediction or from its draws."""

from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

import torch
from torch import Tensor

from leanbayes.conformal.interval_scores.score import IntervalScore
from leanbayes.errors import InputError
from leanbayes.prediction import Prediction

__all__ = ["Quantiles"]

_HALVINGS = 50  # of the interval in which a quantile lies, to about 15 digits


@dataclass(frozen=True)
class Quantiles(IntervalScore):
    """The distance to the predicted quantiles (1 ± level)/2, negative inside.

    Intervals are as wide as the model says, plus one constant.

    Args:
        of: "moments" takes the quantiles of the Gaussian with the predicted mean and variance. "draws" takes those of
            the mixture over draws, each with the Gaussian noise that is predicted, so that they may be skewed.
    """

    name: ClassVar[str] = "quantiles"
    of: str = "moments"

    def __post_init__(self) -> None:
        if self.of not in ("moments", "draws"):
            raise InputError(f'of must be "moments" or "draws", got {self.of!r}')

    @property
    def needs_samples(self) -> bool:  # type: ignore[override]
        """Whether the quantiles are those of the draws."""
        return self.of == "draws"

    def interval(self, prediction: Prediction, level: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return the two quantiles, and 1 as the unit."""
        ends = ((1 - level) / 2, (1 + level) / 2)
        one = torch.ones_like(prediction.mean)
        if self.of == "moments":
            deviation = prediction.total.clamp_min(0).sqrt()
            lower, upper = (prediction.mean + NormalDist().inv_cdf(end) * deviation for end in ends)
            return lower, upper, one
        assert prediction.samples is not None
        draws, deviation = prediction.samples.double(), prediction.aleatoric.clamp_min(0).sqrt()
        lower, upper = (_mixture_quantile(draws, deviation, end) for end in ends)
        return lower, upper, one


def _mixture_quantile(means: Tensor, deviation: Tensor, level: float) -> Tensor:
    """Return where the mixture of Gaussians with these means, (draws, N, ...), has this much below it; by bisection."""
    low, high = means.amin(0) - 10 * deviation, means.amax(0) + 10 * deviation
    narrow = deviation.clamp_min(torch.finfo(means.dtype).tiny)  # without noise the mixture is one of steps
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        below = torch.special.ndtr((middle - means) / narrow).mean(0) < level
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2
