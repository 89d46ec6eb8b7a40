"""The deep-ensemble equivalent (Ashukha et al. 2020): how many plain networks together predict as well as a method."""

import math
from collections.abc import Sequence
from itertools import pairwise

from leanbayes.errors import InputError
from leanbayes.metrics.metric import Metric

__all__ = ["ensemble_equivalent"]

_ROUNDING = 1e-6  # sums in float32 agree no better, and an ensemble must equal its own number of members

ENSEMBLE_EQUIVALENT = Metric(
    "ensemble_equivalent",
    "high",
    "Worth (networks)",
    "How many plain networks, whose predictions are averaged, have the same NLL (the deep-ensemble equivalent).",
)


def ensemble_equivalent(nll: float, by_members: Sequence[float]) -> float:
    """Return the number of members at which ensembles of plain networks have this NLL, by linear interpolation.

    Args:
        nll: the NLL of the method.
        by_members: the mean NLL of ensembles of 1, 2, …, M plain networks on the same data. More members never count as
            worse: where the NLL rises again, the lowest value so far stands for it.

    Returns:
        A number from 1 to M; −∞ if one network is better than the method, and ∞ if M networks are worse than it.

    >>> [ensemble_equivalent(nll, [0.5, 0.4, 0.2]) for nll in (0.6, 0.3, 0.1)]
    [-inf, 2.5, inf]
    """
    if not by_members or not all(map(math.isfinite, (nll, *by_members))):
        raise InputError(f"the equivalent needs finite NLLs of at least one network, got {nll} and {list(by_members)}")
    lowest = [min(by_members[: size + 1]) for size in range(len(by_members))]
    if math.isclose(nll, lowest[0], rel_tol=_ROUNDING, abs_tol=_ROUNDING):
        return 1.0
    if nll > lowest[0]:
        return -math.inf
    for members, (worse, better) in enumerate(pairwise(lowest), start=1):
        if better < worse and math.isclose(nll, better, rel_tol=_ROUNDING, abs_tol=_ROUNDING):
            return members + 1.0
        if better <= nll < worse:
            return members + (worse - nll) / (worse - better)
    return math.inf
