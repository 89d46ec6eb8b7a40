"""The rows of a .csv file of features, or of an .npz file."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from leanbayes.lab.data import Preparation
from leanbayes.lab.data.new_cases import NewCases
from leanbayes.lab.data.tables import read_csv
from leanbayes.lab.shards.form import Cases, Form, ListedCases, Part

__all__ = ["ROWS"]


def fits(path: Path, preparation: Preparation) -> bool:
    """Whether it is a table of inputs, and no list of files."""
    suffix = path.suffix.lower()
    if path.is_dir() or suffix not in (".npz", ".csv"):
        return False
    return suffix == ".npz" or (preparation.size is None and "path" not in _columns(path))


@lru_cache(maxsize=1)
def _cases(path: Path, preparation: Preparation, changed: float) -> NewCases:  # noqa: ARG001
    return NewCases(preparation, path)


def _columns(path: Path) -> tuple[str, ...]:
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        header = file.readline().strip()
    return tuple(name.strip() for name in header.split(max(",;\t", key=header.count)))


def cut(path: Path, preparation: Preparation, size: int) -> Iterator[dict[str, Any]]:
    """Cut the rows."""
    if path.suffix.lower() == ".csv":
        count = len(read_csv(path).rows)
    else:
        count = len(_cases(path, preparation, path.stat().st_mtime))
    for start in range(0, count, size):
        yield {"start": start, "count": min(size, count - start)}


def read(path: Path, part: Part, preparation: Preparation) -> Cases:
    """Read some rows. The table stays in memory for the next part."""
    cases = _cases(path, preparation, path.stat().st_mtime)
    rows = range(part["start"], min(part["start"] + part["count"], len(cases)))
    return ListedCases([cases.names[row] for row in rows], [cases[row] for row in rows])


ROWS = Form("rows", "a .csv file of features or an .npz file", fits, cut, read, order=1)
