"""A curve with noise, on which one sees how sure a network is where it has no data."""

from functools import partial
from pathlib import Path

import numpy as np

from leanbayes.errors import InputError
from leanbayes.lab.data.named import DataSet
from leanbayes.lab.data.source import Source, from_arrays

__all__ = ["cubic"]

_INSIDE, _OUTSIDE = 4, 6
_NOISE = 3.0  # N(0, 9) states the variance
_TEST = 10_000


def cubic(
    folder: Path | str | None = None,  # noqa: ARG001 - it needs none
    seed: int = 0,
    *,
    count: int = 20,
) -> Source:
    """y = x³ + ε, ε ~ N(0, 9): ``count`` points with x in [-4, 4], 10,000 with x in [-6, 6] to test.

    Hernández-Lobato and Adams (2015) have 20 points. Sensitivity-guided subnetworks, section 4.1,
    speaks of 20 and of 30,000: both have a name.
    For validation there are as many as for training, 20 to 1000, from the same interval.

    >>> source = cubic()
    >>> len(source.train), len(source.validation), len(source.test)
    (20, 20, 10000)
    """
    if count < 2:
        raise InputError(f"need at least 2 points, got {count}")
    random = np.random.default_rng(seed)
    sets = {}
    for name, number, end in (
        ("train", count, _INSIDE),
        ("validation", min(max(count, 20), 1000), _INSIDE),
        ("test", _TEST, _OUTSIDE),
    ):
        x = random.uniform(-end, end, number)
        sets[name] = x, x**3 + random.normal(0, _NOISE, number)
    return from_arrays(Path("cubic"), sets, "regression", features=("x",))


SETS = (DataSet("cubic", cubic), DataSet("cubic-30000", partial(cubic, count=30_000)))
