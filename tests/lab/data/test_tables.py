import os
from pathlib import Path

import pytest

from leanbayes.errors import InputError, LeanBayesError
from leanbayes.lab.data import read
from leanbayes.lab.data.tables import csv_safe, is_number, read_csv
from tests.lab.data.makers import csv_file


def rows(target: list[object], separator: str = ",") -> list[str]:
    return [separator.join([f"{index}", f"{index * index / 7}", str(value)]) for index, value in enumerate(target)]


def refused(message: str, path: Path, **options) -> None:
    with pytest.raises(LeanBayesError) as caught:
        read(path, **{"target": "y", **options})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nan,1,0", "line 12, column 'a' is missing ('nan'); fill it or remove the row"),
        ("1,,0", "line 12, column 'b' is missing ('')"),
        ("1,NA,0", "line 12, column 'b' is missing ('NA')"),
        ("inf,2,0", "line 12, column 'a' is inf"),
        ("1,2,", "line 12, column 'y' is missing"),
        ("1,male,0", "line 12, column 'b' is 'male', no number"),
        ("1,2", "line 12 has 2 cells, the header 3"),
        ("1,2,3,4", "line 12 has 4 cells, the header 3"),
        ("1,2,?", "line 12, column 'y' is missing"),
        ("1,2,high", "line 12, column 'y' is 'high', no number"),
        ('1,2,"0', "cannot read"),
    ],
)
def test_a_bad_cell_is_named_by_line_and_column(tmp_path: Path, line: str, message: str) -> None:
    lines = rows([index % 2 for index in range(20)])
    refused(message, csv_file(tmp_path / "a.csv", "a,b,y", [*lines[:10], line, *lines[10:]]))


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", " =", " \n@"])
def test_cells_that_a_spreadsheet_would_run_are_escaped(start: str) -> None:
    assert csv_safe(f"{start}cmd|' /C calc'!A0") == f"'{start}cmd|' /C calc'!A0"


@pytest.mark.parametrize("number", ["-1.5", "+3", "-1e-7", -2, -0.25, 7, "-.5"])
def test_numbers_are_not_escaped(number: object) -> None:
    assert csv_safe(number) == str(number)
    assert is_number(csv_safe(number))


@pytest.mark.parametrize("text", ["cat", "a=b", "1+1", "", "'quoted", "x-1", "mail@home"])
def test_harmless_texts_are_not_escaped(text: str) -> None:
    assert csv_safe(text) == text


@pytest.mark.parametrize("text", ["-1-1", "-", "=", "+1+cmd", "-1.5.2"])
def test_what_only_begins_like_a_number_is_escaped(text: str) -> None:
    assert csv_safe(text) == f"'{text}"


def test_the_name_of_a_file_that_is_no_text_can_be_written() -> None:
    """Before, predict ended with a UnicodeEncodeError after all of its work."""
    assert csv_safe(os.fsdecode(b"case\xff.png")).encode() == b"case\\udcff.png"


def test_many_columns_take_no_time_that_grows_with_their_square(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(60_000)]
    table = read_csv(csv_file(tmp_path / "a.csv", ",".join(names), [",".join("1" * 60_000)]))
    assert sum(table.numbers(name)[0] for name in names) == 60_000
    with pytest.raises(InputError, match=r"has no column 'y'; its columns are \['c0', .* and 59900 more"):
        table.texts("y")
    wide = csv_file(tmp_path / "b.csv", "a," * 100_000 + "a", ["1"])
    with pytest.raises(InputError, match="has 100001 columns, more than 100000"):
        read_csv(wide)
