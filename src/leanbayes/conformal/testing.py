"""Learn then test (Angelopoulos et al. 2022): choose among fixed settings by tests whose errors add up to at most δ."""

import math
from collections.abc import Sequence

from leanbayes.conformal.binomial import at_most

__all__ = ["fallback", "hoeffding_bentkus"]


def hoeffding_bentkus(mean: float, count: int, level: float) -> float:
    """Return a p-value of "the expected loss exceeds ``level``", given the mean of losses between 0 and 1.

    It is the smaller of the bounds of Hoeffding and of Bentkus (Bates et al. 2021).
    """
    low = min(mean, level)
    first = low * math.log(low / level) if low > 0 else 0.0
    divergence = first + (1 - low) * math.log((1 - low) / (1 - level))
    bentkus = math.e * at_most(math.ceil(count * mean - 1e-9), count, level)
    return min(1.0, math.exp(-count * divergence), bentkus)


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
