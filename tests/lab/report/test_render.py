import re
import sys

import jinja2
import matplotlib as mpl
import numpy as np
import pytest

from leanbayes.lab.report import plots
from leanbayes.lab.report.render import fill_template, inline_svg
from tests.lab.report.test_plots import confidences

FIGURES = {
    "tradeoff": lambda: plots.tradeoff([plots.Point(0, 1, 0.1, 0.01), plots.Point(7, 900, 0.2, 0)], "x", "y"),
    "tradeoff of one free method": lambda: plots.tradeoff([plots.Point(0, 0, 0.1, 0)], "x", "y"),
    "reliability": lambda: plots.reliability(*confidences()),
    "risk": lambda: plots.risk_coverage([(0, np.arange(9) / 8, np.arange(9) / 99), (9, np.ones(1), np.ones(1))]),
    "histograms": lambda: plots.histograms([("#0072b2", np.zeros(5)), ("#d55e00", np.array([0.3, 1]))], 0.3, 1.1, "x"),
    "layers": lambda: plots.layers(["a$b$c", r"\$", "名", "<b>"], np.ones(4), np.array([0.0, 1, 10, 100])),
    "sigma": lambda: plots.sigma_map(np.array([[0.1, np.nan], [0.1, 0.1]]), 0.1, 0.1),
    "intervals": lambda: plots.intervals(np.zeros(1), np.array([-1.0]), np.zeros(1)),
}


@pytest.mark.parametrize("name", FIGURES)
def test_figures_become_svg_that_follows_the_page(name):
    svg = inline_svg(FIGURES[name](), "f1", 'a "quoted" <alt>')
    assert svg.startswith("<svg ")
    assert svg.endswith("</svg>")
    assert "currentColor" in svg
    assert "#010203" not in svg
    assert "#040506" not in svg
    assert "<style" not in svg
    assert "<metadata" not in svg
    assert 'aria-label="a &#34;quoted&#34; &lt;alt&gt;"' in svg
    assert all(name.startswith("f1-") for name in re.findall(r'\bid="([^"]*)"', svg))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]*)', svg)) <= set(re.findall(r'\bid="([^"]*)"', svg))


def test_layer_names_are_words_and_not_formulas_or_markup():
    svg = inline_svg(FIGURES["layers"](), "f1", "")
    for text in ("a$b$c", r"\$", "名", "&lt;b&gt;"):
        assert f">{text}</text>" in svg
    assert "<b>" not in svg


def test_plots_touch_no_global_state():
    def open_figures() -> list[int]:
        """Of pyplot, which another test of the same process may have used."""
        return sys.modules["matplotlib.pyplot"].get_fignums() if "matplotlib.pyplot" in sys.modules else []

    before, figures = dict(mpl.rcParams), open_figures()
    for make in FIGURES.values():
        inline_svg(make(), "f1", "")
    assert dict(mpl.rcParams) == before
    assert open_figures() == figures


def test_a_value_that_the_context_lacks_is_an_error():
    with pytest.raises(jinja2.UndefinedError, match="policy"):
        fill_template("page.html", {"title": "t"})
