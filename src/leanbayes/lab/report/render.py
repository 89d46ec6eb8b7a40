"""Fill the page's template, and turn matplotlib figures into inline SVG that follows the page's colours."""

import io
import re
import warnings
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import jinja2
import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

__all__ = ["GRID", "INK", "fill_template", "inline_svg", "package_text"]

# These two colours stand for the page's own ink and grid. `inline_svg` replaces them by those of the style sheet, so
# that plots follow dark mode.
INK, GRID = "#010203", "#040506"


def package_text(name: str) -> str:
    """Read a text file that lies beside this module, such as ``page.css``."""
    return resources.files("leanbayes.lab.report").joinpath(name).read_text(encoding="utf-8")


def fill_template(name: str, context: Mapping[str, Any]) -> str:
    """Fill a template that lies beside this module.

    The template escapes every value that is not `Markup`, so that names in the data can never become HTML. A value
    that the context lacks is an error.
    """
    return str(_environment().get_template(name).render(context))


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(package_text),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def inline_svg(figure: Figure, prefix: str, alternative: str) -> Markup:
    """Return a figure as an ``<svg>`` element.

    Text stays text, and the colours `INK` and `GRID` become those of the page.

    Args:
        figure: the plot.
        prefix: stands before every id in the element, so that several figures can share a page.
        alternative: the words for readers who do not see the plot.
    """
    buffer = io.StringIO()
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with warnings.catch_warnings(), mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix}):
        # matplotlib warns about glyphs that its own font lacks; the browser chooses another font.
        warnings.filterwarnings("ignore", "Glyph", UserWarning)
        FigureCanvasSVG(figure).print_svg(buffer, metadata=no_metadata)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].strip()
    # matplotlib's style element would apply to the whole page.
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.S)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, count=1, flags=re.S)
    svg = re.sub(r'\b(id="|url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    svg = svg.replace(INK, "currentColor").replace(GRID, "var(--grid)")
    svg = re.sub(r">\s+<", "><", svg)
    opening = re.match(r"<svg[^>]*?viewBox=\"([^\"]*)\"[^>]*>", svg, re.S)
    assert opening is not None  # matplotlib always writes a view box
    return Markup(
        f'<svg viewBox="{opening[1]}" role="img" aria-label="{escape(alternative)}" '
        f'xmlns:xlink="http://www.w3.org/1999/xlink">{svg[opening.end() :]}'
    )
