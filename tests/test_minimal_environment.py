"""The library works where only torch, numpy and safetensors are installed.

The test lays links to these packages, and to what they themselves require, into a folder. A process that sees this
folder and the library, and no other installed package, then runs `tests/minimal_script.py`.
"""

import ast
import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import leanbayes

SCRIPT = Path(__file__).with_name("minimal_script.py")
SOURCE = Path(leanbayes.__file__).resolve().parent


CORE = {"torch", "numpy", "safetensors", "leanbayes", *sys.stdlib_module_names}
COMPILED = {  # imported where numba or triton is
    "normal_kernels.py", "moment_kernels.py", "sparse_kernels.py", "sparse_lanes.py", "sparse_tiles.py",
    "sparse_triton_kernels.py",
}  # fmt: skip
ON_DEMAND = {"leanbayes.export.translations"}  # imported by functions that need the optional package anyway


def module_name(path: Path) -> str:
    return ".".join(["leanbayes", *path.relative_to(SOURCE).with_suffix("").parts])


def test_no_module_of_the_library_imports_an_optional_package_at_once() -> None:
    for path in SOURCE.rglob("*.py"):
        if "lab" in path.relative_to(SOURCE).parts or path.name in COMPILED:
            continue
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not ON_DEMAND.intersection(names), f"{path}:{node.lineno}"
            if module_name(path) in ON_DEMAND:
                continue
            assert {name.split(".")[0] for name in names} <= CORE, f"{path}:{node.lineno}"


def required(names: list[str]) -> set[str]:
    """The installed packages that these packages need, themselves included and extras left out."""
    packages: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        try:
            requirements = distribution(name).requires or []
        except PackageNotFoundError:
            continue  # a requirement of another system
        if name not in packages:
            packages.add(name)
            waiting += [re.split(r"[^\w.-]", text)[0] for text in requirements if "extra ==" not in text]
    return packages


def link(packages: set[str], folder: Path) -> None:
    """Link all files of these packages into a folder."""
    for package in packages:
        for file in distribution(package).files or []:
            top = file.parts[0]
            if top != ".." and not (folder / top).exists():
                (folder / top).symlink_to(Path(str(distribution(package).locate_file(top))))


def test_torch_numpy_and_safetensors_are_enough(tmp_path: Path) -> None:
    packages = required(["torch", "numpy", "safetensors"])
    assert "numba" not in packages
    link(packages, tmp_path)
    (tmp_path / "leanbayes").symlink_to(SOURCE)
    environment = {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-S", str(SCRIPT)],
        env={**{key: value for key, value in os.environ.items() if key != "PYTHONHOME"}, **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all of it works" in done.stdout
