"""CSV files: tables with a header whose cells hold a number or a text each."""

import csv
import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from leanbayes.errors import FileError, InputError

__all__ = ["Table", "csv_safe", "integers", "is_number", "read_csv"]

_MISSING = ("", "na", "n/a", "nan", "null", "?")
_MOST_COLUMNS = 100_000
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")  # spreadsheets run a cell that begins with one of these


@dataclass(frozen=True)
class Table:
    """The texts of a CSV file.

    Args:
        path: the file.
        names: the names of the columns.
        rows: the cells of each row.
        lines: the number of each row's line in the file, for error messages.
    """

    path: Path
    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]

    @cached_property
    def _columns(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.names)}

    def texts(self, name: str) -> list[str]:
        """Return one column as texts; a missing value is an error."""
        column = self._column(name)
        for line, row in zip(self.lines, self.rows, strict=True):
            if row[column].lower() in _MISSING:
                raise InputError(f"{self._cell(line, name)} is missing ({row[column]!r}); fill it or remove the row")
        return [row[column] for row in self.rows]

    def numbers(self, name: str) -> list[float]:
        """Return one column as finite numbers; anything else in it is an error."""
        numbers = []
        for line, text in zip(self.lines, self.texts(name), strict=True):
            try:
                number = float(text)
            except ValueError:
                raise InputError(
                    f"{self._cell(line, name)} is {text!r}, no number; write texts as numbers or remove the column"
                ) from None
            if not math.isfinite(number):
                raise InputError(f"{self._cell(line, name)} is {text}; fill it or remove the row")
            numbers.append(number)
        return numbers

    def _column(self, name: str) -> int:
        if name not in self._columns:
            raise InputError(f"{self.path} has no column {name!r}; its columns are {_listed(self.names)}")
        return self._columns[name]

    def _cell(self, line: int, name: str) -> str:
        return f"{self.path}, line {line}, column {name!r}"


def read_csv(path: Path) -> Table:
    """Read a CSV file in UTF-8.

    Commas, semicolons or tabs separate the cells, whichever the header has most of. Empty lines are left out.
    """
    names: tuple[str, ...] = ()
    rows: list[tuple[str, ...]] = []
    lines: list[int] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = file.readline()
            file.seek(0)
            reader = csv.reader(file, delimiter=max(",;\t", key=header.count), strict=True)
            for cells in reader:
                row = tuple(cell.strip() for cell in cells)
                if not any(row) and len(row) < 2:
                    continue
                if not names:
                    names = row
                    _check_names(names, path)
                    continue
                if len(row) != len(names):
                    raise InputError(
                        f"{path}, line {reader.line_num} has {len(row)} cells, the header {len(names)}; make them alike"
                    )
                rows.append(row)
                lines.append(reader.line_num)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FileError(f"cannot read {path}: {error}; save it as CSV in UTF-8") from error
    if not rows:
        raise InputError(f"{path} has no rows; give a header line and a line for each example")
    return Table(path, names, tuple(rows), tuple(lines))


def csv_safe(cell: object) -> str:
    """Return the text of a cell for a CSV file, such that no spreadsheet takes it for a formula.

    A spreadsheet runs a cell that begins with =, +, - or @ when someone opens the file, and such a cell can come from
    the name of a file or of a class. The function puts an apostrophe before it. Numbers stay as they are. Bytes in the
    name of a file that are no UTF-8 are written as hexadecimal numbers.

    >>> csv_safe("=1+1"), csv_safe("cat"), csv_safe(-1.5), csv_safe("+2e-3")
    ("'=1+1", 'cat', '-1.5', '+2e-3')
    """
    text = str(cell).encode("utf-8", "backslashreplace").decode("utf-8")
    begins = text.startswith(_FORMULA_STARTS) or text.lstrip().startswith(_FORMULA_STARTS)
    return f"'{text}" if begins and not is_number(text) else text


def integers(texts: list[str]) -> list[int] | None:
    """Return the texts as integers, or None if one of them is no integer.

    >>> integers(["1", "-2"]), integers(["1", "2.5"])
    ([1, -2], None)
    """
    try:
        return [int(text) for text in texts]
    except ValueError:
        return None


def is_number(text: str) -> bool:
    """Return whether a text reads as a number.

    >>> is_number("-1.5e3"), is_number("1-2")
    (True, False)
    """
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_names(names: tuple[str, ...], path: Path) -> None:
    if len(names) > _MOST_COLUMNS:
        raise InputError(f"{path} has {len(names)} columns, more than {_MOST_COLUMNS}; save it as an .npz file")
    name, count = Counter(names).most_common(1)[0]
    if count > 1 and name:
        raise InputError(f"{path} has two columns named {name!r}; rename one of them")
    if "" in names:
        raise InputError(f"column {names.index('') + 1} of {path} has no name; name it or remove it")


def _listed(names: tuple[str, ...], most: int = 100) -> str:
    """Return the names as a list, cut short if there are very many."""
    return str(list(names)) if len(names) <= most else f"{list(names[:most])} and {len(names) - most} more"
