"""The matrix of other tools: which tool, in which version, does what together with LeanBayes.

A test that shows that something works says so by a decorator, and so becomes a part of a row of the matrix:

    @shows("Lightning", "A callback adds the KL to the loss of your own LightningModule.")
    def test_...

Several tests, and all cases of a test, may show the same row. The row then works if all of them pass. Cases of one test
may show rows of their own: ``pytest.param(..., marks=shows(...))``. The tool and the sentence must be written out in
the decorator, because they are read without running the tests.

    make matrix

runs all these tests and writes docs/integrations/matrix.md. `tests/integrations/test_docs.py` checks that the page has
the rows that the tests declare.

A tool that is not installed, because it is too heavy for the usual environment, keeps the row that it has in the page.
A folder with further packages lets such tools be tried:

    pip install --target /tmp/trackers wandb mlflow-skinny
    python -m tests.integrations.matrix --also /tmp/trackers
"""

import argparse
import ast
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from leanbayes._provenance import surroundings

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "integrations" / "matrix.md"

TOOLS = {
    "accelerate": "accelerate",
    "Hugging Face Hub": "huggingface_hub",
    "Lightning": "lightning",
    "Material for MkDocs": "mkdocs-material",
    "MLflow": "mlflow-skinny",
    "MONAI": "monai",
    "nnU-Net": "dynamic-network-architectures",
    "NumPy": "numpy",
    "ONNX Runtime": "onnxruntime",
    "pandas": "pandas",
    "PEFT": "peft",
    "PyTorch": "torch",
    "scikit-learn": "scikit-learn",
    "setuptools": "setuptools",
    "TensorBoard": "tensorboard",
    "torchmetrics": "torchmetrics",
    "Transformers": "transformers",
    "Weights & Biases": "wandb",
}
"""The tools, each with the name of the package that says its version."""

_HEAD = """\
# What works with which tool

The tests make this table: `make matrix` runs every test that shows a row, and writes the page.
A row works if all tests that show it pass with the version in the row. MLflow and Weights & Biases are too heavy for
the environment of the tests; their rows say with which version these tests were last run. The other pages of this
folder explain how each tool is used with LeanBayes.

{run}

| tool | version | what it does together with LeanBayes | works | tests |
|---|---|---|---|---|
"""


@dataclass(frozen=True, order=True)
class Claim:
    """A row of the matrix before it is tested: what a tool does together with LeanBayes."""

    tool: str
    what: str

    def __post_init__(self) -> None:
        if self.tool not in TOOLS:
            raise ValueError(f"{self.tool!r} is none of {list(TOOLS)}; add it to TOOLS in {__file__}")
        if not self.what.endswith(".") or "|" in self.what or "\n" in self.what:
            raise ValueError(f"{self.what!r} must be a whole sentence in one line, without the sign |")


def shows(tool: str, what: str) -> pytest.MarkDecorator:
    """Mark a test, or a case of one, as showing a row of the matrix.

    Args:
        tool: the tool, one of `TOOLS`.
        what: what works, as a sentence.
    """
    claim = Claim(tool, what)
    return pytest.mark.integration(claim.tool, claim.what)


@cache
def declared() -> dict[Claim, frozenset[str]]:
    """Return the rows that the tests declare, each with the files of these tests, without running any."""
    files: dict[Claim, frozenset[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text()
        if "shows(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "shows":
                claim = Claim(*(ast.literal_eval(argument) for argument in node.args))
                files[claim] = files.get(claim, frozenset()) | {path.relative_to(ROOT).as_posix()}
    return files


class Outcomes:
    """A plug-in for pytest that notes which tests of a row passed."""

    def __init__(self) -> None:
        self.passed: dict[Claim, list[bool]] = {}
        self.claims: dict[str, list[Claim]] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Note what each test shows."""
        for item in items:
            self.claims[item.nodeid] = [Claim(*mark.args) for mark in item.iter_markers("integration")]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note whether a test passed. A test that is skipped shows nothing, so it does not pass."""
        if report.when == "call" or report.outcome != "passed":
            for claim in self.claims.get(report.nodeid, ()):
                self.passed.setdefault(claim, []).append(report.outcome == "passed")

    def page(self, before: str = "") -> str:
        """Return the page with a row for each claim; tools that are not installed keep their rows of ``before``."""
        kept = dict(zip([claim for claim, _ in rows_of(before)], _rows(before), strict=True))
        claims = sorted(declared().items(), key=lambda row: (row[0].tool.lower(), row[0].what))
        return _HEAD.format(run=_run()) + "".join(
            self._row(claim, files, kept.get(claim)) + "\n" for claim, files in claims
        )

    def _row(self, claim: Claim, files: Iterable[str], kept: str | None) -> str:
        try:
            installed = version(TOOLS[claim.tool])
        except PackageNotFoundError:
            return kept or f"| {claim.tool} | none | {claim.what} | no | {_links(files)} |"
        works = "yes" if all(self.passed.get(claim, [False])) else "no"
        return f"| {claim.tool} | {installed} | {claim.what} | {works} | {_links(files)} |"


def _run() -> str:
    """Return a sentence that says on which code the tests ran."""
    made = surroundings("tests")
    changed = ", with changes that were not committed yet" if made["changed_since_commit"] else ""
    return f"The last run was on commit {str(made['commit'])[:7]}{changed}, with Python {made['machine']['python']}."


def rows_of(page: str) -> list[tuple[Claim, bool]]:
    """Return the rows of the page, and whether they work."""
    cells = [line.strip("| ").split(" | ") for line in _rows(page)]
    return [(Claim(tool, what), works == "yes") for tool, _, what, works, _ in cells]


def _rows(page: str) -> list[str]:
    return page.partition("|---|---|---|---|---|\n")[2].splitlines()


def _links(files: Iterable[str]) -> str:
    return ", ".join(f"[{Path(file).stem}](../../{file})" for file in sorted(files))


def main() -> int:
    """Run the tests of all rows and write the page. Return 0 if every row works."""
    parser = argparse.ArgumentParser(description="Run the tests of other tools, and write the page of what works.")
    parser.add_argument("--also", default="", help="A folder with packages that the environment does not have.")
    sys.path += [folder for folder in [parser.parse_args().also] if folder]
    os.environ["SCIPY_ARRAY_API"] = "1"  # without it, scikit-learn skips one of its estimator checks
    outcomes = Outcomes()
    files = sorted(set().union(*declared().values()))
    options = ["-p", "no:cacheprovider", "-o", "timeout=3600"]  # the slow tests too, also on a busy machine
    status = pytest.main([*options, "-m", "integration", *files], plugins=[outcomes])
    PAGE.write_text(outcomes.page(PAGE.read_text()))
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
