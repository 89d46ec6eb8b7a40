"""A Parquet file, read by pyarrow: columns of features, or a column ``image`` with the bytes of image files."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from leanbayes.errors import FileError, InputError, LeanBayesError, MissingPackage
from leanbayes.lab.data import Preparation
from leanbayes.lab.data.images import HeldImage, read_image
from leanbayes.lab.data.new_cases import NewCase
from leanbayes.lab.shards.form import Cases, Form, ListedCases, Part

__all__ = ["PARQUET"]

_IMAGE, _NAMES = "image", ("name", "__key__", "path")


def fits(path: Path, preparation: Preparation) -> bool:  # noqa: ARG001
    """Whether its name says that it is such a file."""
    return path.is_file() and path.suffix.lower() in (".parquet", ".pq")


def cut(path: Path, preparation: Preparation, size: int) -> Iterator[dict[str, Any]]:
    """Cut the rows."""
    with _opened(path) as file:
        _columns(path, file, preparation)
        count = file.metadata.num_rows
    if not count:
        raise InputError(f"{path} has no rows; give a file that has some")
    for start in range(0, count, size):
        yield {"start": start, "count": min(size, count - start)}


def read(path: Path, part: Part, preparation: Preparation) -> Cases:
    """Read the rows of a part, from the row groups that hold them."""
    with _opened(path) as file:
        columns = _columns(path, file, preparation)
        table, start = _rows(file, part["start"], part["count"], columns)
    names = next((table.column(name).to_pylist() for name in _NAMES if name in columns), None)
    texts = [str(start + row) if names is None else str(names[row]) for row in range(table.num_rows)]
    if preparation.size is not None:
        images = table.column(_IMAGE).to_pylist()
        return ListedCases(texts, [_picture(path, *pair, preparation) for pair in zip(texts, images, strict=True)])
    values = np.stack([np.asarray(table.column(name).to_numpy(), np.float64) for name in preparation.features], 1)
    cases = [
        NewCase(text, preparation.array(row, f"row {text} of {path}")) for text, row in zip(texts, values, strict=True)
    ]
    return ListedCases(texts, cases)


def _picture(path: Path, name: str, cell: Any, preparation: Preparation) -> NewCase:
    data = cell.get("bytes") if isinstance(cell, dict) else cell  # data sets of Hugging Face have a dictionary
    if not isinstance(data, bytes):
        raise InputError(f"row {name} of {path} has no bytes of an image in its column {_IMAGE!r}")
    image = HeldImage(data, f"{path}: {name}")
    pixels = read_image(image, len(preparation.mean))
    return NewCase(name, preparation.picture(image), tuple(pixels.shape[1:]), read=lambda: pixels)


def _rows(file: Any, start: int, count: int, columns: list[str]) -> tuple[Any, int]:
    """Read the rows from ``start`` on, and return them with the number of the first one."""
    groups: list[int] = []
    before, first = 0, 0
    for group in range(file.num_row_groups):
        size = file.metadata.row_group(group).num_rows
        if before + size > start and before < start + count:
            first = before if not groups else first
            groups.append(group)
        before += size
    table = file.read_row_groups(groups, columns=columns)
    return table.slice(start - first, count), start


def _columns(path: Path, file: Any, preparation: Preparation) -> list[str]:
    """Return the columns that are read, and refuse a file that lacks one."""
    there = file.schema_arrow.names
    wanted = [_IMAGE] if preparation.size is not None else list(preparation.features)
    missing = [name for name in wanted if name not in there]
    if missing:
        raise InputError(f"{path} has no column {missing[0]!r}; its columns are {there[:20]}")
    return wanted + [name for name in _NAMES if name in there and name not in wanted][:1]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        parquet = import_module("pyarrow.parquet")
        arrow_error = import_module("pyarrow").ArrowException
    except ImportError as error:
        raise MissingPackage.of("reading a Parquet file", "pyarrow", "parquet") from error
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except LeanBayesError:
        raise
    except (arrow_error, OSError, ValueError, TypeError) as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise FileError(f"cannot read {path}: {first}; copy or save it again") from error


PARQUET = Form("parquet", "a Parquet file", fits, cut, read, order=1)
