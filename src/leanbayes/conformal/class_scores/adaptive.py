"""APS (Romano et al. 2020) and RAPS (Angelopoulos et al. 2021): the probability of all classes down to this one."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leanbayes.conformal.class_scores.score import ClassScore
from leanbayes.conformal.class_scores.top_k import ranks
from leanbayes.errors import InputError

__all__ = ["APS", "RAPS"]


@dataclass(frozen=True)
class APS(ClassScore):
    """The summed probability of all classes that are at least as probable as this one.

    Its sets are large where the prediction is unsure, so that the coverage is more even over easy and hard inputs.

    Args:
        randomised: subtracts a random part of the class's own probability. The coverage is then as asked and not above
            it, and sets may be empty. Without it sets are larger and never empty. The random part of an input follows
            from its probabilities and a seed, so it is the same in each call.
    """

    name: ClassVar[str] = "aps"
    randomised: bool = True

    @property
    def needs_noise(self) -> bool:  # type: ignore[override]
        """Whether the score subtracts a random part."""
        return self.randomised

    def scores(self, probabilities: Tensor, noise: Tensor) -> Tensor:
        """Return the sum over the classes that come before and this one, less the random part of this one."""
        ordered, order = probabilities.sort(dim=1, descending=True, stable=True)
        cumulated = ordered.cumsum(1)
        sums = torch.empty_like(cumulated).scatter_(1, order, cumulated)
        return sums - noise[:, None] * probabilities if self.randomised else sums


@dataclass(frozen=True)
class RAPS(ClassScore):
    """APS with a penalty on each class beyond the first ones, so that no set becomes very large.

    Args:
        penalty: what each further rank adds to the score.
        free: how many ranks are free of the penalty.
        randomised: as for `APS`.
    """

    name: ClassVar[str] = "raps"
    penalty: float = 0.01
    free: int = 5
    randomised: bool = True

    def __post_init__(self) -> None:
        if not (self.penalty >= 0 and self.penalty < torch.inf) or self.free < 0:
            raise InputError(f"need a finite penalty >= 0 and free >= 0, got {self.penalty} and {self.free}")

    @property
    def needs_noise(self) -> bool:  # type: ignore[override]
        """Whether the score subtracts a random part."""
        return self.randomised

    def scores(self, probabilities: Tensor, noise: Tensor) -> Tensor:
        """Return the score of APS, plus the penalty on the rank."""
        beyond = (ranks(probabilities) - self.free).clamp_min(0)
        return APS(self.randomised).scores(probabilities, noise) + self.penalty * beyond
