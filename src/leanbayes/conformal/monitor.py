"""A monitor that says when new examples are no longer exchangeable with those of the calibration."""

import bisect
import math
import random
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from leanbayes.conformal.quantiles import check_level, check_scores
from leanbayes.errors import InputError

__all__ = ["Monitor", "Watch"]

_BETS = (-1.0, 0.0, 1.0)
_JUMP = 0.01  # the share of the capital that is dealt out to all bets alike before each example


@dataclass(frozen=True)
class Watch:
    """What a monitor knows after a batch.

    Attributes:
        seen: how many new examples it has seen.
        evidence: the value of the martingale: how many times over a bet against exchangeability has grown.
        highest: the highest value so far.
        alarm: whether the highest value has reached 1/α, so that the guarantee can no longer be trusted.
        at: after which new example it did; None if it has not.
    """

    seen: int
    evidence: float
    highest: float
    alarm: bool
    at: int | None


class Monitor:
    """Watches scores batch by batch, and raises an alarm when coverage can no longer be trusted.

    The rank of each new score among all scores before it is uniform and independent of the past, as long as the
    examples are exchangeable. The monitor bets against that with the simple jumper (Vovk et al. 2021), whose capital is
    a martingale that starts at 1. By Ville's inequality it ever reaches 1/α with probability at most α. So all looks at
    the monitor together, over any time, raise a false alarm with probability at most α.

    Scores may be those of a conformal predictor, which need the true answers, or anything else that has one number for
    each input, such as its uncertainty, which needs none. The monitor stores each score.

    Args:
        scores: those of the calibration examples.
        alpha: the largest probability of a false alarm.
        seed: decides how ties are broken.

    >>> monitor = Monitor(torch.randn(200, generator=torch.Generator().manual_seed(0)), alpha=0.05)
    >>> monitor.update(torch.randn(100, generator=torch.Generator().manual_seed(1))).alarm
    False
    >>> monitor.update(3 + torch.randn(100, generator=torch.Generator().manual_seed(2))).alarm
    True
    """

    def __init__(self, scores: Tensor, alpha: float = 0.05, seed: int = 0) -> None:
        self.alpha = check_level(alpha, "alpha")
        self._seen = sorted(_numbers(scores))
        self._source = random.Random(seed)
        self._parts = [1 / len(_BETS)] * len(_BETS)  # of the capital, in each bet
        self._log_capital, self._highest = 0.0, 0.0
        self._count = 0
        self._at: int | None = None
        if not len(self._seen):
            raise InputError("a monitor needs scores of calibration examples, got none")

    @classmethod
    def of(cls, predictor: Any, alpha: float = 0.05, seed: int = 0) -> "Monitor":
        """Make a monitor of the calibration scores of `Sets` or `Intervals`; feed it with their method ``scores``."""
        scores = getattr(predictor, "scores_seen", None)
        if not isinstance(scores, Tensor) or not len(scores):
            raise InputError(f"a monitor needs a calibrated Sets or Intervals, got a {type(predictor).__name__}")
        if len(predictor.weights_seen):
            raise InputError(
                "this predictor was calibrated with weights for inputs from another distribution, so that new scores "
                "differ from those of the calibration by design, and a monitor would soon raise an alarm; give the "
                "monitor scores of the new distribution: Monitor(scores)"
            )
        return cls(scores if scores.dim() == 1 else scores.flatten(1).amax(1), alpha, seed)

    @property
    def watch(self) -> Watch:
        """What the monitor knows so far."""
        capital, highest = _exp(self._log_capital), _exp(self._highest)
        return Watch(self._count, capital, highest, self._at is not None, self._at)

    def update(self, scores: Tensor) -> Watch:
        """Take in the scores of a batch of new examples, in the order in which they came.

        Returns:
            What the monitor knows now. An alarm stays.
        """
        for score in _numbers(scores):
            self._count += 1
            self._bet(self._p_value(score))
            self._highest = max(self._highest, self._log_capital)
            if self._at is None and self._log_capital >= -math.log(self.alpha):
                self._at = self._count
        return self.watch

    def _p_value(self, score: float) -> float:
        """Return the rank of a score among all so far and itself, with ties broken at random, and store the score."""
        low, high = bisect.bisect_left(self._seen, score), bisect.bisect_right(self._seen, score)
        above, equal = len(self._seen) - high, high - low + 1
        self._seen.insert(low, score)
        return (above + self._source.random() * equal) / len(self._seen)

    def _bet(self, p: float) -> None:
        """Deal out a hundredth of the capital, and let each bet ε grow by 1 + ε(p − ½), whose mean over p is 1."""
        mixed = [(1 - _JUMP) * part + _JUMP / len(_BETS) for part in self._parts]
        grown = [part * (1 + bet * (p - 0.5)) for part, bet in zip(mixed, _BETS, strict=True)]
        growth = sum(grown)
        self._log_capital += math.log(growth)
        self._parts = [part / growth for part in grown]


def _numbers(scores: Tensor) -> list[float]:
    if not isinstance(scores, Tensor):
        raise InputError(f"scores must be a tensor, got a {type(scores).__name__}")
    scores = scores.detach().double().flatten()
    check_scores(scores)
    return [float(score) for score in scores.tolist()]


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
