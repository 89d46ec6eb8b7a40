"""Shows the examples in docstrings as code: mkdocstrings takes those outside a section "Examples" for prose."""

import re
from typing import Any

from griffe import Extension, Object

_EXAMPLE = re.compile(r"^(?P<indent> *)>>> .*(?:\n(?! *$).*)*", re.MULTILINE)
"""From the first prompt to the next empty line, or to the end."""


def fenced(text: str) -> str:
    """Put every doctest of a docstring between the marks of a block of code."""

    def block(match: re.Match[str]) -> str:
        indent = match["indent"]
        return f"{indent}```pycon\n{match[0]}\n{indent}```"

    return _EXAMPLE.sub(block, text)


class Doctests(Extension):
    """Griffe calls `on_object` for everything that it reads."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring, if there is one."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
