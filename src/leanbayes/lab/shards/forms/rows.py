"""The rows of a .csv file of features, or of an .npz file."""

from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from torch import Tensor

from leanbayes.lab.data import Preparation
from leanbayes.lab.data.new_cases import NewCase
from leanbayes.lab.shards.form import Cases, Form, ListedCases, Part

__all__ = ["ROWS"]


def fits(path: Path, preparation: Preparation) -> bool:
    """Whether it is a table of inputs, and no list of files."""
    suffix = path.suffix.lower()
    if path.is_dir() or suffix not in (".npz", ".csv"):
        return False
    return suffix == ".npz" or (preparation.size is None and "path" not in _columns(path))


@lru_cache(maxsize=1)
def _table(path: Path, preparation: Preparation, changed: float) -> Tensor:  # noqa: ARG001
    """Return the rows of a file, which stay in memory for the next part, unless the file changes."""
    return preparation.table(path)


def _columns(path: Path) -> tuple[str, ...]:
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        header = file.readline().strip()
    return tuple(name.strip() for name in header.split(max(",;\t", key=header.count)))


def cut(path: Path, preparation: Preparation, size: int) -> Iterator[dict[str, Any]]:
    """Cut the rows."""
    count = len(_table(path, preparation, path.stat().st_mtime))
    for start in range(0, count, size):
        yield {"start": start, "count": min(size, count - start)}


def read(path: Path, part: Part, preparation: Preparation) -> Cases:
    """Read some rows. The name of a row is its number in the file."""
    start = part["start"]
    rows = _table(path, preparation, path.stat().st_mtime)[start : start + part["count"]]
    names = [str(start + number) for number in range(len(rows))]
    inputs = [preparation.standardise(row) for row in rows]
    cases = [NewCase(name, x, read=partial(preparation.original, x)) for name, x in zip(names, inputs, strict=True)]
    return ListedCases(names, cases)


ROWS = Form("rows", "a .csv file of features or an .npz file", fits, cut, read, order=1)
