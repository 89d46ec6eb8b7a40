"""Lines of prose, in a terminal or in a file."""

import textwrap

from rich.console import Console

__all__ = ["print_line"]


def print_line(console: Console, text: str) -> None:
    """Print a line as it is: brackets and numbers in it are neither markup nor highlighted.

    A terminal breaks it between words only, so that a path can be copied; a file has it in one line.
    """
    if console.is_terminal and len(text) > console.width:
        text = textwrap.fill(text, console.width, break_long_words=False, break_on_hyphens=False)
    console.print(text, markup=False, highlight=False, soft_wrap=True)
