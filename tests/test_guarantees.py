"""Every promise of docs/guarantees.md names a test that exists and that `make test` or `make test-slow` runs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "guarantees.md"
ROWS = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
PROMISES = [row for row in ROWS if row[0] != "promise"]
LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")


@pytest.mark.parametrize("row", PROMISES, ids=lambda row: row[0][:60])
def test_a_promise_is_held_by_tests_that_exist(row: list[str]) -> None:
    promise, condition, tests = row
    assert promise.endswith((".", "(*long*)."))
    assert condition
    links = LINK.findall(tests)
    assert links
    for name, path in links:
        file = PAGE.parent / path
        assert file.resolve().is_relative_to(ROOT / "tests")
        assert file.name.startswith("test_"), f"pytest does not run {file.name}"
        short, _, function = name.partition("::")
        assert file.resolve() == ROOT / "tests" / short
        text = file.read_text()
        assert re.search(rf"^ *def {function or 'test_'}", text, re.MULTILINE), f"{path} has no {function}"


def test_the_page_is_linked() -> None:
    assert "docs/guarantees.md" in (ROOT / "README.md").read_text()
    assert "guarantees.md" in (ROOT / "docs" / "guide.md").read_text()
    assert len(PROMISES) > 20
