"""One figure of the page as plain data: panels side by side, a legend, and a caption that explains how to read them.

Nothing here is markup. The template ``page.html`` decides how each part looks.
"""

from dataclasses import dataclass

from matplotlib.figure import Figure

__all__ = ["Card", "LegendEntry", "Overlay", "Panel", "Ramp", "Section", "Strip"]


@dataclass(frozen=True)
class LegendEntry:
    """One line of a legend: a mark in a colour, and the words that explain it."""

    colour: str
    mark: str
    words: str


@dataclass(frozen=True)
class Ramp:
    """The colour scale of a heat map, as a CSS gradient, with the words for its two ends."""

    gradient: str
    low: str
    high: str


@dataclass(frozen=True)
class Card:
    """A picture with the method's answer below it.

    Args:
        address: the picture as a ``data:`` address.
        alternative: the words for readers who do not see the picture.
        answer: the class that the method predicts.
        truth: the true class.
        right: whether the answer is the true class.
        uncertainty: the entropy, in words.
    """

    address: str
    alternative: str
    answer: str
    truth: str
    right: bool
    uncertainty: str


@dataclass(frozen=True)
class Strip:
    """A row of pictures under one heading."""

    title: str
    cards: tuple[Card, ...]


@dataclass(frozen=True)
class Overlay:
    """Two pictures of one segmentation: which areas are right or wrong, and where the method is unsure."""

    verdict: str
    verdict_alternative: str
    uncertainty: str
    uncertainty_alternative: str


@dataclass(frozen=True)
class Panel:
    """One method's part of a figure: either a plot, or strips of pictures, or overlays.

    Args:
        title: the heading, usually the method's name.
        note: a short line below the heading.
        plot: the plot.
        alternative: the words for readers who do not see the plot.
        strips: pictures in rows.
        overlays: pairs of pictures of segmentations.
    """

    title: str = ""
    note: str = ""
    plot: Figure | None = None
    alternative: str = ""
    strips: tuple[Strip, ...] = ()
    overlays: tuple[Overlay, ...] = ()


@dataclass(frozen=True)
class Section:
    """A figure of the page.

    Args:
        name: the anchor that links point to.
        title: the heading.
        caption: how to read the figure.
        panels: what stands side by side; a section without panels is left out of the page.
        legend: what the colours and marks stand for.
        ramp: the colour scale of heat maps, if there are any.
    """

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    legend: tuple[LegendEntry, ...] = ()
    ramp: Ramp | None = None
