"""Runs the code of a page of documentation, so that the page cannot show what does not work.

A test calls ``run_page("docs/integrations/lightning.md", tmp_path)``. All blocks that are marked ``python`` run from
top to bottom, in one namespace, as a reader would type them. The working directory is the folder that the test gives,
so a page may write files. A block that is marked ``output`` is what the block of code above it prints; it is compared
as doctest compares, so ``...`` stands for anything. Blocks with other marks, such as ``bash``, do not run.
"""

import contextlib
import doctest
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

_BLOCK = re.compile(r"^```(python|output)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
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


def run_page(page: str, folder: Path, names: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Run the code of a page, and compare what it prints with what the page says.

    Args:
        page: the path of the page in the repository, such as "docs/integrations/lightning.md".
        folder: the working directory of the code.
        names: names that the code may use without defining them. Most pages need none.

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
        if block.output is not None and not _alike(block.output, printed.getvalue()):
            raise AssertionError(
                f"{page}:{block.line} prints\n{printed.getvalue()}\nand the page says that it prints\n{block.output}"
            )
    return namespace


def _alike(wanted: str, printed: str) -> bool:
    return doctest.OutputChecker().check_output(wanted, printed, _RULES)
