"""The program ``leanbayes``. It lists the commands without importing torch, which alone takes more than a second.

This module lies beside the package, because importing anything inside the package imports torch. It reads the name and
the help of each command from the text of its file. Everything else is the work of `leanbayes.lab.main`.
"""

import ast
import importlib.util
import shutil
import sys
import textwrap
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

__all__ = ["commands", "main", "overview"]


def main() -> int:
    """Run the command ``leanbayes``; see `leanbayes.lab.main`."""
    if sys.argv[1:] in (["-h"], ["--help"]):
        found = commands()
        if found is not None:
            sys.stdout.write(overview(found))
            return 0
    from leanbayes.lab import main as run

    return run()


def commands() -> dict[str, str] | None:
    """Return the help of each command by its name; None if a command does not state both as plain texts."""
    found: dict[str, str] = {}
    home = _file_of("leanbayes.lab.cli.commands.train")
    if home is None:
        return None
    files = [path for path in sorted(home.parent.glob("*.py")) if path.stem != "__init__"]
    files += [path for point in entry_points(group="leanbayes.commands") if (path := _file_of(point.module))]
    for file in files:
        texts = list(_commands_in(file))
        if not texts:
            return None
        found |= dict(texts)
    return dict(sorted(found.items()))


def overview(found: dict[str, str]) -> str:
    """Return the list of commands, wrapped to the width of the terminal.

    Args:
        found: the help of each command by its name.
    """
    width = min(shutil.get_terminal_size().columns, 100)
    lines = ["usage: leanbayes COMMAND [OPTIONS]", ""]
    lines += textwrap.wrap("LeanBayes makes a PyTorch network say how sure it is. The commands are:", width)
    lines.append("")
    column = max(map(len, found)) + 4
    for name, sentence in found.items():
        text = textwrap.wrap(sentence, width - column)
        lines.append(f"  {name:{column - 2}}{text[0]}")
        lines += [" " * column + line for line in text[1:]]
    lines += ["", "leanbayes COMMAND --help explains the options of a command."]
    return "\n".join(lines) + "\n"


def _file_of(module: str) -> Path | None:
    """Return the file of a module, without importing it or the packages that it lies in."""
    first, *rest = module.split(".")
    spec = importlib.util.find_spec(first)
    if spec is None or spec.origin is None:
        return None
    top = Path(spec.origin)
    file = top.parent.joinpath(*rest).with_suffix(".py") if rest else top
    return file if file.is_file() else None


def _commands_in(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the first two arguments of each call of ``Command`` in a file: the name and the help."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Command":
            values = [argument.value for argument in node.args[:2] if isinstance(argument, ast.Constant)]
            if len(values) == 2 and all(isinstance(value, str) for value in values):
                yield str(values[0]), str(values[1])
