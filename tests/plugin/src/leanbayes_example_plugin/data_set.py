"""A data set with a name: points in the plane, whose class says whether their coordinates have the same sign."""

from pathlib import Path

import numpy as np

from leanbayes.lab.data import DataSet, Source
from leanbayes.lab.data.source import from_arrays


def parity(folder: Path | str | None = None, seed: int = 0) -> Source:
    x = np.random.default_rng(seed).normal(size=(120, 2))
    return from_arrays(Path("parity"), {"train": (x, (x.prod(1) > 0).astype(np.int64))}, "classes", seed=seed)


PARITY = DataSet("parity", parity)
