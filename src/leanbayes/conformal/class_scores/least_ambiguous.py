"""LAC, the score of least ambiguous sets (Sadinle et al. 2019)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from leanbayes.conformal.class_scores.score import ClassScore

__all__ = ["LAC"]


@dataclass(frozen=True)
class LAC(ClassScore):
    """One minus the probability of the class.

    Its sets are the smallest on average. Hard inputs may get too small a set, and easy ones pay for them.
    """

    name: ClassVar[str] = "lac"
    needs_noise: ClassVar[bool] = False

    def scores(self, probabilities: Tensor, noise: Tensor) -> Tensor:  # noqa: ARG002
        """Return 1 − p."""
        return 1 - probabilities
