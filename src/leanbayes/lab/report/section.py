"""One figure of the page as plain data: panels side by side, a legend, and a caption that explains how to read them.

Nothing here is markup. The template ``page.html`` decides how each part looks.
"""

from dataclasses import dataclass

from matplotlib.figure import Figure

__all__ = ["Card", "LegendEntry", "Outline", "Overlay", "Panel", "Portrait", "Ramp", "Section", "Strip"]


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
class Outline:
    """A line around a mask: the path of an SVG image, its colour, and how it is drawn ("", "thin" or "dashed")."""

    path: str
    colour: str
    style: str = ""


@dataclass(frozen=True)
class Portrait:
    """One case as one method sees it: the image with outlines, and two maps of doubt.

    Args:
        title: the name of the method.
        note: its score and its doubt, in words.
        image: the image as a ``data:`` address.
        total: the map of the total uncertainty, likewise.
        epistemic: the map of the epistemic uncertainty, likewise.
        outlines: the lines over the image.
        width: how many pixels the image has along its rows.
        height: how many along its columns, in units of the width of a pixel.
        stretch: the height of a pixel over its width.
        words: what a reader who does not see the pictures should know.
    """

    title: str
    note: str
    image: str
    total: str
    epistemic: str
    outlines: tuple[Outline, ...]
    width: int
    height: float
    stretch: float
    words: str


@dataclass(frozen=True)
class Panel:
    """One method's part of a figure: either a plot, or strips of pictures, or overlays. Portraits are of one case.

    Args:
        title: the heading, usually the method's name.
        note: a short line below the heading.
        plot: the plot.
        alternative: the words for readers who do not see the plot.
        strips: pictures in rows.
        overlays: pairs of pictures of segmentations.
        portraits: the case as each method sees it.
    """

    title: str = ""
    note: str = ""
    plot: Figure | None = None
    alternative: str = ""
    strips: tuple[Strip, ...] = ()
    overlays: tuple[Overlay, ...] = ()
    portraits: tuple[Portrait, ...] = ()


@dataclass(frozen=True)
class Section:
    """A figure of the page.

    Args:
        name: the anchor that links point to.
        title: the heading.
        caption: how to read the figure.
        panels: what stands side by side; a section without panels is left out of the page.
        legend: what the colours and marks stand for.
        ramps: the colour scales of heat maps, if there are any.
        first: whether the figure comes before the tables.
    """

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    legend: tuple[LegendEntry, ...] = ()
    ramps: tuple[Ramp, ...] = ()
    first: bool = False
