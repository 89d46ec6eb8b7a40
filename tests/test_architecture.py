"""Imports point one way, the public names are documented, and the project keeps its own rules."""

import ast
import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import pytest

import leanbayes

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "src" / "leanbayes"
LAB = LIBRARY / "lab"
PAPERS = ROOT / "papers" / "src" / "leanbayes_papers"


def storey_of(path: Path) -> str:
    """The storey that a file belongs to."""
    if path.is_relative_to(PAPERS):
        return "papers"
    return "lab" if path.is_relative_to(LAB) else "library"


def layers(storey: str) -> list[str]:
    """The order of a storey's modules that CONTRIBUTING.md states."""
    block = (ROOT / "CONTRIBUTING.md").read_text().split(f"```{storey}\n")[1].split("```")[0]
    return [line.split()[0].removesuffix("/").removesuffix(".py") for line in block.strip().splitlines()]


def layer_of(path: Path) -> str:
    """The first part of a file's path inside its storey."""
    home = {"library": LIBRARY, "lab": LAB, "papers": PAPERS}[storey_of(path)]
    return path.relative_to(home).parts[0].removesuffix(".py")


def imported_modules(path: Path) -> list[str]:
    """The full names of all modules that a file imports, wherever in the file it does."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} has a relative import"
            names.append(node.module or "")
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return names


MODULES = sorted(
    path
    for home in (LIBRARY, PAPERS)
    for path in home.rglob("*.py")
    if path not in (LIBRARY / "__init__.py", LAB / "__init__.py")
)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_upward(path: Path) -> None:
    """The library imports neither of the others, the laboratory not the papers, and no module one below it."""
    storey = storey_of(path)
    for name in imported_modules(path):
        first, *rest = name.split(".")
        assert first != "leanbayes_papers" or storey == "papers", f"{path.name} imports {name}"
        if first != "leanbayes" or storey == "papers":
            continue
        assert rest, f"{path.name} imports the package that imports it"
        if rest[0] == "lab":
            assert storey == "lab", f"{path.name} of the library imports {name}"
            order = layers("lab")
            assert order.index(rest[1]) <= order.index(layer_of(path)), f"{path.name} imports {name}, which is below it"
        elif storey == "library":
            order = layers("library")
            assert order.index(rest[0]) <= order.index(layer_of(path)), f"{path.name} imports {name}, which is below it"


@pytest.mark.parametrize("storey", ["library", "lab"])
def test_every_module_has_a_layer(storey: str) -> None:
    assert {layer_of(path) for path in MODULES if storey_of(path) == storey} == set(layers(storey))


def test_public_names_are_sorted_and_few() -> None:
    assert list(leanbayes.__all__) == sorted(leanbayes.__all__)
    functions = [name for name in leanbayes.__all__ if not isinstance(getattr(leanbayes, name), ModuleType)]
    assert len(functions) <= 38


def packages() -> list[ModuleType]:
    """Every public package of the library and the laboratory."""
    names = ["leanbayes"]
    for info in pkgutil.walk_packages(leanbayes.__path__, "leanbayes."):
        if info.ispkg and not any(part.startswith("_") for part in info.name.split(".")):
            names.append(info.name)
    return [importlib.import_module(name) for name in names]


@pytest.mark.parametrize("package", packages(), ids=lambda package: package.__name__)
def test_no_name_shadows_a_module(package: ModuleType) -> None:
    """``import leanbayes.metrics as m`` gives the module: no function or class has the name of a module beside it."""
    for info in pkgutil.iter_modules(package.__path__):
        if info.name == "__main__":  # importing it runs the command
            continue
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        assert getattr(package, info.name) is module, f"{package.__name__}.{info.name} is not the module of that name"


@pytest.mark.parametrize("package", packages(), ids=lambda package: package.__name__)
def test_public_names_exist_and_are_described(package: ModuleType) -> None:
    for name in getattr(package, "__all__", []):
        value = getattr(package, name)
        if inspect.isfunction(value) or inspect.isclass(value) or isinstance(value, ModuleType):
            assert inspect.getdoc(value), f"{package.__name__}.{name} has no docstring"


@pytest.mark.parametrize("name", leanbayes.__all__)
def test_public_names_are_documented(name: str) -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert any(re.search(rf"\b{name}\b", page.read_text()) for page in pages), f"{name} is on no page of the docs"


def test_library_code_does_not_print_or_move_to_the_host() -> None:
    for path in MODULES:
        if storey_of(path) == "papers" or layer_of(path) == "cli":  # whose job it is to print
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = getattr(node.func, "attr", getattr(node.func, "id", ""))
                assert called not in ("print", "cpu", "numpy"), f"{path.name}:{node.lineno} calls {called}"
