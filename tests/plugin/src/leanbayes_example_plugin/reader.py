"""A reader of data: tables whose columns are parted by tabs, and whose last column is predicted."""

from pathlib import Path

import numpy as np

from leanbayes.lab.data import Reader, ReadOptions, Source
from leanbayes.lab.data.source import from_arrays


def _read(path: Path, options: ReadOptions) -> Source:
    table = np.loadtxt(path, delimiter="\t")
    return from_arrays(path, {"train": (table[:, :-1], table[:, -1].astype(np.int64))}, "classes", seed=options.seed)


TSV = Reader("tsv", "a .tsv file", lambda path: path.suffix == ".tsv", _read)
