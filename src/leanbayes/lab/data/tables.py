"""Tables in a CSV file: a header, and a number or a text in every cell."""

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from leanbayes.errors import FileError, InputError

__all__ = ["Table", "csv_safe", "integers", "is_number", "read_csv"]

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_MISSING = ("", "na", "n/a", "nan", "null", "?")


@dataclass(frozen=True)
class Table:
    """Cells by row, the columns' names, and each row's line in the file."""

    path: Path
    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]

    def texts(self, name: str) -> list[str]:
        """One column; a missing value is an error."""
        column = self._place(name)
        for line, row in zip(self.lines, self.rows, strict=True):
            if row[column].lower() in _MISSING:
                raise InputError(f"{self._cell(line, name)} is missing ({row[column]!r}); fill it or remove the row")
        return [row[column] for row in self.rows]

    def numbers(self, name: str) -> list[float]:
        """One column as finite numbers; anything else is an error."""
        found = []
        for line, text in zip(self.lines, self.texts(name), strict=True):
            try:
                number = float(text)
            except ValueError:
                raise InputError(
                    f"{self._cell(line, name)} is {text!r}, no number; write texts as numbers or remove the column"
                ) from None
            if not math.isfinite(number):
                raise InputError(f"{self._cell(line, name)} is {text}; fill it or remove the row")
            found.append(number)
        return found

    def _place(self, name: str) -> int:
        if name not in self.names:
            raise InputError(f"{self.path} has no column {name!r}; its columns are {list(self.names)}")
        return self.names.index(name)

    def _cell(self, line: int, name: str) -> str:
        return f"{self.path}, line {line}, column {name!r}"


def read_csv(path: Path) -> Table:
    """A table of texts; cells are parted by commas, semicolons or tabs, whichever the header has most of."""
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
                    continue
                if len(row) != len(names):
                    raise InputError(
                        f"{path}, line {reader.line_num} has {len(row)} cells, the header {len(names)}; make them alike"
                    )
                rows.append(row)
                lines.append(reader.line_num)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FileError(f"cannot read {path}: {error}; save it as CSV in UTF-8") from error
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"{path} has two columns named {twice[0]!r}; rename one of them")
    if "" in names:
        raise InputError(f"column {names.index('') + 1} of {path} has no name; name it or remove it")
    if not rows:
        raise InputError(f"{path} has no rows; give a header line and a line for each example")
    return Table(path, names, tuple(rows), tuple(lines))


def csv_safe(cell: str) -> str:
    """Return a text for a cell of a CSV file, with an apostrophe before it if a spreadsheet would run it as a formula.

    Names of files and classes come from strangers. A spreadsheet takes a cell that begins with ``= + - @``, a tab or
    the end of a line as a formula, and a formula can run programs. Numbers stay as they are.

    >>> csv_safe("=HYPERLINK(A1)"), csv_safe("-1.5"), csv_safe("x.png")
    ("'=HYPERLINK(A1)", '-1.5', 'x.png')
    """
    return f"'{cell}" if cell.startswith(_FORMULA) and not is_number(cell) else cell


def integers(texts: list[str]) -> list[int] | None:
    """The texts as integers, or None if one is not.

    >>> integers(["1", "-2"]), integers(["1", "2.5"])
    ([1, -2], None)
    """
    try:
        return [int(text) for text in texts]
    except ValueError:
        return None


def is_number(text: str) -> bool:
    """Whether a text reads as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
