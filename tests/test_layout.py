"""The tests mirror the sources: a test of ``a/b.py`` is ``tests/a/test_b.py``."""

from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
LIBRARY = TESTS.parent / "src" / "leanbayes"
PAPERS = TESTS.parent / "papers" / "src" / "leanbayes_papers"
BENCHMARKS = TESTS.parent / "benchmarks"

WHOLE_PRODUCT = {
    "architecture", "breadth", "citations", "documentation", "examples", "guarantees", "layout", "minimal_environment",
    "oracles", "packaging", "plugin", "scale", "site", "truth", "tutorials", "version_0_1",
}  # fmt: skip
"""Tests at the top of ``tests`` that are about the product as a whole."""

SUITES = {"crash", "fuzz", "shapes", "sharded", "workers"}
"""Folders that hold one suite over the whole product each."""

ABOUT_A_PACKAGE = {"conformance", "docs", "nets", "in_browser"}
"""Names of tests that hold for every module of their package, or for its page of documentation."""


def mirrors_a_module(test: Path) -> bool:
    """Whether a module, or the package of that name, lies where the test's path says."""
    folders, name = list(test.relative_to(TESTS).parts[:-1]), test.stem.removeprefix("test_")
    home = LIBRARY
    if folders[:1] == ["papers"]:
        home, folders = PAPERS, folders[1:]
    if folders[:1] == ["benchmarks"]:
        home, folders = BENCHMARKS, folders[1:]
    package = home.joinpath(*folders)
    module = (package / f"{name}.py").is_file() or (package / name / "__init__.py").is_file()
    return module or (package.name == name and (package / "__init__.py").is_file())


def is_about_more(test: Path) -> bool:
    """Whether the test is about the whole product or a whole package, and is named as such a test."""
    parts, name = test.relative_to(TESTS).parts, test.stem.removeprefix("test_")
    if len(parts) == 1:
        return name in WHOLE_PRODUCT
    return parts[0] in SUITES or any(name == word or name.endswith(f"_{word}") for word in ABOUT_A_PACKAGE)


@pytest.mark.parametrize("test", sorted(TESTS.rglob("test_*.py")), ids=lambda test: str(test.relative_to(TESTS)))
def test_a_test_lies_where_its_module_does(test: Path) -> None:
    assert mirrors_a_module(test) or is_about_more(test), f"{test} tests no module of that path; move or rename it"


def test_the_rule_can_fail() -> None:
    assert not mirrors_a_module(TESTS / "train" / "test_nothing.py")
    assert not is_about_more(TESTS / "train" / "test_nothing.py")
