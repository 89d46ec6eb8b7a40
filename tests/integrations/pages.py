"""Runs the code of a page of documentation, so that the page cannot show what does not work.

A test calls ``run_page("docs/integrations/lightning.md", tmp_path)``. All blocks that are marked ``python`` run from
top to bottom, in one namespace, as a reader would type them. The working directory is the folder that the test gives,
so a page may write files. A block that is marked ``output`` is what the block of code above it prints; it is compared
as doctest compares, so ``...`` stands for anything. Blocks with other marks, such as ``bash``, do not run.

    python -m tests.integrations.pages docs/tutorials/classify.md docs/pictures/tutorials

runs a page and copies the pictures that its code draws into a folder.
"""

import contextlib
import doctest
import io
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

_BLOCK = re.compile(r"^```(python|output)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_DECIMAL = re.compile(r"\d+\.(\d+)")
_RULES = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """A block of code in a page.

    Attributes:
        line: the line of the page where the code begins, from 1.
        code: the code.
        output: what the page says that the code prints; None if the page does not say.
    """

    line: int
    code: str
    output: str | None


def blocks_of(text: str) -> list[Block]:
    """Return the blocks of code in a page, in their order."""
    blocks: list[Block] = []
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start(2)) + 1
        if match[1] == "python":
            blocks.append(Block(line, match[2], None))
            continue
        if not blocks or blocks[-1].output is not None:
            raise ValueError(f"line {line}: an output block must follow the block of code that prints it")
        blocks[-1] = Block(blocks[-1].line, blocks[-1].code, match[2])
    return blocks


def run_page(page: str, folder: Path, names: Mapping[str, Any] | None = None, *, last_digit: int = 0) -> dict[str, Any]:
    """Run the code of a page, and compare what it prints with what the page says.

    Args:
        page: the path of the page in the repository, such as "docs/integrations/lightning.md".
        folder: the working directory of the code.
        names: names that the code may use without defining them. Most pages need none.
        last_digit: by how many units of its last digit a number with a decimal point may differ from the page.
            Trainings round otherwise on other machines.

    Returns:
        The names that the code has defined, for further tests.
    """
    path = ROOT / page
    blocks = blocks_of(path.read_text())
    assert blocks, f"{page} has no block of code that runs"
    namespace: dict[str, Any] = {"__name__": "__page__", **(names or {})}
    for block in blocks:
        # Empty lines before the code let a traceback name the line of the page.
        code = compile("\n" * (block.line - 1) + block.code, str(path), "exec")
        printed = io.StringIO()
        with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
            exec(code, namespace)
        if block.output is not None and not alike(block.output, printed.getvalue(), last_digit):
            raise AssertionError(
                f"{page}:{block.line} prints\n{printed.getvalue()}\nand the page says that it prints\n{block.output}"
            )
    return namespace


def alike(wanted: str, printed: str, last_digit: int = 0) -> bool:
    """Return whether the code printed what the page says, up to some units of the last digit of decimal numbers."""
    numbers = list(zip(_DECIMAL.finditer(wanted), _DECIMAL.finditer(printed), strict=False))
    for stated, got in reversed(numbers):
        unit = 10.0 ** -len(stated[1])
        if len(stated[1]) == len(got[1]) and abs(float(stated[0]) - float(got[0])) < (last_digit + 0.5) * unit:
            printed = printed[: got.start()] + stated[0] + printed[got.end() :]
    return doctest.OutputChecker().check_output(wanted, printed, _RULES)


def main() -> None:
    """Run the page that the command names, and copy its pictures."""
    page, pictures = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        run_page(page, Path(folder), last_digit=2)
        for picture in Path(folder).glob("*.png"):
            shutil.copy(picture, Path(pictures) / picture.name)


if __name__ == "__main__":
    main()
