"""A noisy curve, which shows how sure a network is where it has no data."""

from functools import partial
from pathlib import Path

import numpy as np

from leanbayes.errors import InputError
from leanbayes.lab.data.named import DataSet
from leanbayes.lab.data.source import Source, from_arrays

__all__ = ["cubic"]

_INSIDE, _OUTSIDE = 4, 6
_NOISE = 3.0  # the standard deviation of N(0, 9)
_TEST = 10_000


def cubic(
    folder: Path | str | None = None,  # noqa: ARG001 - every data set takes it
    seed: int = 0,
    *,
    count: int = 20,
) -> Source:
    """Draw points of y = x³ + ε with ε ~ N(0, 9).

    Training and validation have x in [-4, 4]. The test has 10,000 points with x in [-6, 6]. Hernández-Lobato and Adams
    (2015) train on 20 points. Sensitivity-guided subnetworks (section 4.1) mention both 20 and 30,000 points, so both
    have a name: "cubic" and "cubic-30000".

    Args:
        folder: is not used, because the set is computed.
        seed: decides all draws.
        count: how many points are for training. As many are for validation, but at least 20 and at most 1000.

    >>> source = cubic()
    >>> len(source.train), len(source.validation), len(source.test)
    (20, 20, 10000)
    """
    if count < 2:
        raise InputError(f"count must be at least 2 points, got {count}")
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
