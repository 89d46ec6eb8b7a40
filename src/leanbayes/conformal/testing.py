"""Learn then test (Angelopoulos et al. 2022): choose among fixed settings by tests whose errors add up to at most δ."""

import math
from collections.abc import Sequence

from leanbayes.conformal.binomial import at_most, root_of

__all__ = ["fallback", "hoeffding_bentkus", "mean_interval"]


def hoeffding_bentkus(mean: float, count: int, level: float) -> float:
    """Return a p-value of "the expected loss exceeds ``level``", given the mean of losses between 0 and 1.

    It is the smaller of the bounds of Hoeffding and of Bentkus (Bates et al. 2021).
    """
    low = min(mean, level)
    first = low * math.log(low / level) if low > 0 else 0.0
    divergence = first + (1 - low) * math.log((1 - low) / (1 - level))
    bentkus = math.e * at_most(math.ceil(count * mean - 1e-9), count, level)
    return min(1.0, math.exp(-count * divergence), bentkus)


def mean_interval(mean: float, count: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return an interval that holds the expected loss with at least this confidence, for losses between 0 and 1.

    It inverts the tests of `hoeffding_bentkus` on both sides, so it holds for every law of the losses and every count.

    >>> low, high = mean_interval(0.05, 200)
    >>> round(low, 3), round(high, 3)
    (0.021, 0.099)
    """

    def upper_end(loss: float) -> float:
        return root_of(lambda level: hoeffding_bentkus(loss, count, level) - (1 - confidence) / 2)

    return 1 - upper_end(1 - mean), upper_end(mean)


def fallback(p_values: Sequence[float], error: float) -> list[bool]:
    """Test hypotheses in a fixed order, such that any true one is rejected with probability at most ``error``.

    Each gets an equal part of the error. A rejected one hands all that it had to the next one (Wiens 2003). So a run of
    clear rejections soon tests at almost the whole error, and those that fail before it cost only their parts.

    >>> fallback([0.5, 0.001, 0.03, 0.2], 0.1)
    [False, True, True, False]
    """
    part, carried, rejected = error / len(p_values), 0.0, []
    for p in p_values:
        available = part + carried
        rejected.append(p <= available)
        carried = available if rejected[-1] else 0.0
    return rejected
