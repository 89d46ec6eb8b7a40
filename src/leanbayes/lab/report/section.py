"""A figure of the page as data: panels side by side, a legend, and how to read them."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from leanbayes.lab.report.render import Html, element

__all__ = ["Panel", "Section", "legend"]


@dataclass(frozen=True)
class Panel:
    """One plot, or pictures as markup, with a title and a note above it."""

    body: Figure | Html
    title: str = ""
    note: str = ""
    alternative: str = ""


@dataclass(frozen=True)
class Section:
    """A figure of the page: its panels side by side, a legend for them, and how to read them."""

    name: str
    title: str
    caption: str
    panels: Sequence[Panel]
    legend: Html | None = None


def legend(entries: Sequence[tuple[str, str, str]]) -> Html:
    """Entries (colour, mark, words)."""
    items = (
        element("li", element("span", mark, style=f"color: {colour}", aria_hidden="true"), " ", words)
        for colour, mark, words in entries
    )
    return element("ul", *items, class_="legend")
