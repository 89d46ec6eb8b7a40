import re

import numpy as np
import pytest
import torch

from leanbayes.lab.report import pictures, plots
from leanbayes.lab.report.render import inline_svg
from leanbayes.metrics import calibration_error


def confidences(n=500):
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1, n)
    return confidence, (rng.random(n) < confidence**2).astype(float)


def test_reliability_bins_give_the_calibration_error():
    confidence, correct = confidences()
    x, y, share = plots.reliability_bins(confidence, correct, bins=15)
    probabilities = torch.tensor(np.stack([confidence, 1 - confidence], 1))
    expected = calibration_error(probabilities, torch.tensor(1 - correct).long(), bins=15)
    assert share.sum() == pytest.approx(1)
    assert np.sum(share * np.abs(x - y)) == pytest.approx(float(expected), abs=1e-12)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_certain_confidences_have_a_bin(value):
    x, y, share = plots.reliability_bins(np.full(4, value), np.array([0.0, 1, 1, 1]))
    assert (x.tolist(), y.tolist(), share.tolist()) == ([value], [0.75], [1.0])


def test_pooling_is_the_mean_of_what_is_random():
    matrix = np.arange(24.0).reshape(4, 6)
    matrix[0, :3] = np.nan
    matrix[1, :3] = np.nan
    matrix[2, 3] = np.nan
    pooled = plots.pooled(matrix, rows=2, columns=2)
    assert np.isnan(pooled[0, 0])
    assert pooled[0, 1] == np.mean(matrix[:2, 3:])
    assert pooled[1, 1] == np.nanmean(matrix[2:, 3:])
    np.testing.assert_array_equal(plots.pooled(matrix), matrix)


def test_pooling_of_uneven_blocks_loses_no_weight():
    found = np.full((513, 7), np.nan)
    found[512, 6] = 0.3
    assert np.nanmax(plots.pooled(found, 64, 4)) == 0.3
    assert plots.pooled(found, 64, 4).shape == (64, 4)


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
    import sys

    import matplotlib as mpl

    before = dict(mpl.rcParams)
    for make in FIGURES.values():
        inline_svg(make(), "f1", "")
    assert dict(mpl.rcParams) == before
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def test_the_overlay_paints_each_verdict_in_its_colour():
    truth = np.array([[0, 1, 0, 1, 1]])
    predicted = np.array([[0, 1, 1, 0, 2]])
    painted = pictures.overlay(np.full((1, 5), 0.5), truth, predicted, strength=1.0)[0]
    colours = ["#%02x%02x%02x" % tuple(pixel) for pixel in painted.tolist()]  # noqa: UP031
    missed = pictures.FALSE_NEGATIVE
    assert colours == ["#808080", pictures.TRUE_POSITIVE, pictures.FALSE_POSITIVE, missed, missed]
    for colour, channel in ((pictures.TRUE_POSITIVE, 1), (pictures.FALSE_POSITIVE, 2), (missed, 0)):
        levels = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        assert levels.index(max(levels)) == channel  # green, blue, red


@pytest.mark.parametrize("shape", [(4, 4), (4, 4, 3), (4, 4, 1), (4, 4, 7)])
def test_pictures_of_any_channels_become_rgb(shape):
    image = np.full(shape, 2.0)
    image[0, 0] = np.nan
    assert pictures.picture(image).shape == (4, 4, 3)
    assert pictures.picture(image)[0, 0].tolist() == [0, 0, 0]
    assert pictures.picture(image)[1, 1].tolist() == [255, 255, 255]


def test_small_pictures_are_exact_and_large_ones_are_small():
    import base64
    import io

    from PIL import Image

    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (28, 28, 3), dtype=np.uint8)
    kind, _, data = pictures.data_address(pixels).partition(";base64,")
    assert kind == "data:image/png"
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))), pixels)
    large = pictures.data_address(rng.integers(0, 256, (900, 600, 3), dtype=np.uint8))
    assert large.startswith("data:image/jpeg")
    assert len(large) < 60_000


def test_a_map_without_doubt_is_dark():
    np.testing.assert_array_equal(pictures.heat(np.zeros((2, 2)), 0.0), pictures.heat(np.zeros((2, 2)), 1.0))


def test_bin_shares_sum_to_one_whatever_lies_outside():
    shares = plots.bin_shares(np.array([-1.0, 0.0, 0.5, 1.0, 7.0]), 1.0, bins=2)
    assert shares.tolist() == [0.4, 0.6]
