"""Imports point one way, the public names are documented, and the project keeps its own rules."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import leanbayes

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "leanbayes"


def layers() -> list[str]:
    """The order that CONTRIBUTING.md states."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    block = text.split("## Where things are")[1].split("```")[1]
    return [line.split()[0].removesuffix("/").removesuffix(".py") for line in block.strip().splitlines()]


def layer_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_upward(path: Path) -> None:
    order = layers()
    own = order.index(layer_of(path))
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name.split(".")[0] == "leanbayes":
                assert name != "leanbayes", f"{path.name} imports the package that imports it"
                assert order.index(name.split(".")[1]) <= own, f"{path.name} imports {name}, which stands below it"


def test_every_module_has_a_layer() -> None:
    assert {layer_of(path) for path in MODULES} == set(layers())


def test_public_names_are_sorted_and_exist() -> None:
    assert list(leanbayes.__all__) == sorted(leanbayes.__all__)
    for name in leanbayes.__all__:
        assert getattr(leanbayes, name) is not None


@pytest.mark.parametrize("name", leanbayes.__all__)
def test_public_names_are_documented(name: str) -> None:
    assert inspect.getdoc(getattr(leanbayes, name))
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert any(re.search(rf"\b{name}\b", page.read_text()) for page in pages), f"{name} is on no page of the docs"


def test_library_code_does_not_print_or_move_to_the_host() -> None:
    for path in MODULES:
        if layer_of(path) == "cli":  # whose job it is to print
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = getattr(node.func, "attr", getattr(node.func, "id", ""))
                assert called not in ("print", "cpu", "numpy"), f"{path.name}:{node.lineno} calls {called}"
