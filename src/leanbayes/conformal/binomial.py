"""Exact binomial tails and the interval of Clopper and Pearson (1934), in float64 and without scipy."""

import math
from collections.abc import Callable

from leanbayes.conformal.quantiles import check_level
from leanbayes.errors import InputError

__all__ = ["at_most", "clopper_pearson", "root_of"]

_TINY = 1e-300


def at_most(successes: int, trials: int, probability: float) -> float:
    """Return P(X ≤ successes) for X ~ Binomial(trials, probability), by the incomplete beta function.

    >>> round(at_most(0, 10, 0.1), 10) == round(0.9**10, 10)
    True
    """
    if successes < 0:
        return 0.0
    if successes >= trials or probability <= 0:
        return 1.0
    if probability >= 1:
        return 0.0
    return _incomplete_beta(trials - successes, successes + 1, 1 - probability, probability)


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return an interval that holds the probability of success with at least this confidence.

    >>> low, high = clopper_pearson(90, 100)
    >>> round(low, 4), round(high, 4)
    (0.8238, 0.951)
    """
    check_level(confidence, "confidence")
    if not 0 <= successes <= trials or trials < 1:
        raise InputError(f"need 0 <= successes <= trials and at least one trial, got {successes} of {trials}")
    tail = (1 - confidence) / 2
    # Each end is where the observed count, or one as extreme, has the probability of the tail.
    low = 0.0 if successes == 0 else root_of(lambda p: at_most(successes - 1, trials, p) - (1 - tail))
    high = 1.0 if successes == trials else root_of(lambda p: at_most(successes, trials, p) - tail)
    return low, high


def root_of(falling: Callable[[float], float]) -> float:
    """Return where a falling function of a probability is zero, by bisection."""
    low, high = 0.0, 1.0
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return middle
        if falling(middle) > 0:
            low = middle
        else:
            high = middle


def _incomplete_beta(a: float, b: float, x: float, rest: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b) with rest = 1 − x, by its continued fraction."""
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _fraction(b, a, rest, x)
    return _fraction(a, b, x, rest)


def _fraction(a: float, b: float, x: float, rest: float) -> float:
    """Evaluate the continued fraction of Lentz, which converges fast for x < (a + 1)/(a + b + 2)."""
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    c, d = 1.0, 1.0 / _away(1.0 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 100_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 / _away(1.0 + term * d)
            c = _away(1.0 + term / c)
            value *= c * d
        if abs(c * d - 1.0) < 1e-16:
            break
    return math.exp(front) * value / a


def _away(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
