"""Markup that is escaped unless it says otherwise, and figures as inline SVG that follow the page's colours."""

import html
import io
import re
import warnings

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

__all__ = ["GRID", "INK", "Html", "element", "inline_svg", "join"]

# Colours that stand for the page's own: the SVG takes them from the style sheet, so they follow dark mode.
INK, GRID = "#010203", "#040506"


class Html(str):
    """Text that is markup already. A plain ``str`` is somebody's words, and gets escaped."""

    __slots__ = ()


def element(tag: str, /, *children: str, **attributes: str | bool | None) -> Html:
    """``<tag attribute="…">children</tag>``, with everything escaped that is not :class:`Html`.

    >>> element("td", "a < b", class_="number", data_value="1")
    '<td class="number" data-value="1">a &lt; b</td>'
    """
    parts = [tag]
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        if value is True:
            parts.append(key)
        elif value is not None and value is not False:
            parts.append(f'{key}="{html.escape(value)}"')
    opening = f"<{' '.join(parts)}>"
    return Html(opening if tag in ("img", "meta", "link", "br") else f"{opening}{join(*children)}</{tag}>")


def join(*children: str) -> Html:
    """Children side by side."""
    return Html("".join(child if isinstance(child, Html) else html.escape(child) for child in children))


def inline_svg(figure: Figure, prefix: str, alternative: str) -> Html:
    """A figure as ``<svg>``: ids made unique by ``prefix``, text kept as text, ink and grid taken from the page."""
    buffer = io.StringIO()
    bare = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with warnings.catch_warnings(), mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix}):
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # the browser has the glyph, whatever our font lacks
        FigureCanvasSVG(figure).print_svg(buffer, metadata=bare)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.S)  # would style the whole page
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, count=1, flags=re.S)
    svg = re.sub(r'\b(id="|url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    svg = svg.replace(INK, "currentColor").replace(GRID, "var(--grid)")
    svg = re.sub(r">\s+<", "><", svg)
    size = re.match(r"<svg[^>]*?viewBox=\"([^\"]*)\"[^>]*>", svg, re.S)
    assert size is not None  # matplotlib always writes one
    label = html.escape(alternative)
    return Html(
        f'<svg viewBox="{size[1]}" role="img" aria-label="{label}" xmlns:xlink="http://www.w3.org/1999/xlink">'
        + svg[size.end() :]
    )
