"""A table in a CSV file: one column is predicted from all others."""

from pathlib import Path

import numpy as np

from leanbayes.errors import InputError
from leanbayes.lab.data.reader import Reader, ReadOptions
from leanbayes.lab.data.source import Source, from_arrays
from leanbayes.lab.data.tables import integers, is_number, read_csv

__all__ = ["CSV"]

_MOST_CLASSES = 20  # a column with at most so many different integers holds classes; one with more holds numbers


def _read(path: Path, options: ReadOptions) -> Source:
    table, target, kind = read_csv(path), options.target, options.kind
    if target is None:
        raise InputError(f"say which column of {path} to predict with target=...; its columns are {list(table.names)}")
    texts = table.texts(target)
    features = tuple(name for name in table.names if name not in (target, options.groups, options.subgroups))
    if not features:
        raise InputError(f"{path} has no column besides {target!r} to predict it from")
    if kind not in (None, "classes", "regression"):
        raise InputError(f"{path} is a table, which gives no {kind!r}; choose classes or regression")
    whole_numbers = integers(texts)
    if kind is None:
        few = whole_numbers is not None and len(set(whole_numbers)) <= _MOST_CLASSES
        kind = "classes" if few or not any(map(is_number, texts)) else "regression"
    class_values = texts if whole_numbers is None else whole_numbers
    y = np.array(table.numbers(target) if kind == "regression" else class_values)
    x = np.array([table.numbers(name) for name in features]).T
    patients = None if options.groups is None else {"train": table.texts(options.groups)}
    subgroups = None if options.subgroups is None else {"train": table.texts(options.subgroups)}
    return from_arrays(
        path,
        {"train": (x, y)},
        kind,
        features=features,
        seed=options.seed,
        patients=patients,
        subgroups=subgroups,
    )


CSV = Reader(
    "csv",
    "a .csv file",
    lambda path: path.suffix.lower() == ".csv",
    _read,
    takes=("target", "groups", "subgroups"),
)
