"""The quantile of split conformal prediction, exact for finite samples, and what follows from sorted scores.

Let s₁ … sₙ be the scores of the calibration examples and s that of a new example, and let all n + 1 be exchangeable.
Then s is at most the k-th smallest of s₁ … sₙ with probability at least k/(n + 1), whatever their distribution is. So
the threshold for a level is the k-th smallest score with k = ⌈(n + 1)·level⌉. If k > n, no finite threshold exists.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from leanbayes.errors import InputError, NonFinite, ShapeMismatch

__all__ = ["SortedScores", "check_level", "fewest_scores", "quantile", "rank_of"]


def check_level(level: float, name: str = "level") -> float:
    """Return the level as a float; raise unless it is a number between 0 and 1."""
    if isinstance(level, bool) or not isinstance(level, int | float) or not 0 < level < 1:
        raise InputError(f"{name} must be a number between 0 and 1, both excluded, got {level!r}; for 90 % give 0.9")
    return float(level)


def rank_of(count: int, level: float) -> int:
    """Return k = ⌈(count + 1)·level⌉. The level counts as the decimal number that it is written as.

    >>> rank_of(9, 0.9), rank_of(99, 0.9), rank_of(8, 0.9)
    (9, 90, 9)
    """
    return math.ceil((count + 1) * Fraction(repr(level)))


def fewest_scores(level: float) -> int:
    """Return how many scores a finite threshold needs: the smallest n with ⌈(n + 1)·level⌉ ≤ n.

    >>> fewest_scores(0.9), fewest_scores(0.95), fewest_scores(0.5)
    (9, 19, 1)
    """
    exact = Fraction(repr(check_level(level)))
    return math.ceil(exact / (1 - exact))


def quantile(scores: Tensor, level: float) -> Tensor:
    """Return the threshold that a new score does not exceed with at least this probability.

    Args:
        scores: the scores of the calibration examples, one axis.
        level: the probability.

    Raises:
        InputError: there are too few scores for this level.
        NonFinite: a score is NaN or infinite.

    >>> quantile(torch.arange(1.0, 100.0), 0.9)
    tensor(90.)
    """
    level = check_level(level)
    check_scores(scores)
    needed = fewest_scores(level)
    if len(scores) < needed:
        raise InputError(
            f"{len(scores)} calibration examples are too few for the level {level:g}, which needs at least {needed}; "
            "give more of them, or ask for a lower level"
        )
    return scores.kthvalue(rank_of(len(scores), level)).values


def check_scores(scores: Tensor) -> None:
    """Raise unless the scores are finite numbers along one axis."""
    if scores.dim() != 1 or not scores.is_floating_point():
        raise ShapeMismatch(
            f"scores must be floating-point numbers along one axis, got {scores.dtype} of shape {tuple(scores.shape)}"
        )
    if not torch.isfinite(scores).all():
        bad = int((~torch.isfinite(scores)).sum())
        raise NonFinite(f"{bad} of {len(scores)} scores are NaN or infinite; look for NaN in the data and the outputs")


@dataclass(frozen=True)
class SortedScores:
    """Calibration scores in order, each with a weight, for thresholds that differ from input to input.

    With weights wᵢ = dP_new/dP_calibration(xᵢ) and w = dP_new/dP_calibration(x), the threshold for x is the smallest
    score q with Σ wᵢ·1{sᵢ ≤ q} ≥ level·(Σ wᵢ + w) (Tibshirani et al. 2019). If no score is large enough, it is
    infinite: the calibration examples say too little about such an x.

    Args:
        scores: the sorted scores.
        cumulated: the sums of the weights of all scores up to each one.
    """

    scores: Tensor
    cumulated: Tensor

    @classmethod
    def of(cls, scores: Tensor, weights: Tensor | None = None) -> "SortedScores":
        """Sort scores; without weights each of them counts 1."""
        ordered, order = scores.sort()
        each = torch.ones_like(ordered) if weights is None else weights[order].to(ordered.dtype)
        return cls(ordered, each.cumsum(0))

    def thresholds(self, level: float, weights: Tensor) -> Tensor:
        """Return the threshold for each new input, given its weight."""
        total = self.cumulated[-1] if len(self.cumulated) else self.cumulated.new_zeros(())
        aim = level * (total + weights.to(self.cumulated))
        # A share that equals the level but for rounding counts as reaching it.
        place = torch.searchsorted(self.cumulated, aim * (1 - 1e-12))
        padded = torch.cat([self.scores, self.scores.new_full((1,), torch.inf)])
        return padded[place]

    def p_values(self, new: Tensor) -> Tensor:
        """Return (1 + #{i: sᵢ ≥ s})/(n + 1) for each new score s: at most α with probability at most α."""
        below = torch.searchsorted(self.scores, new.to(self.scores).contiguous())
        return (1 + len(self.scores) - below).to(self.scores.dtype) / (len(self.scores) + 1)
