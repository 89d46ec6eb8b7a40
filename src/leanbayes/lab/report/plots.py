"""The plots of the report. Each function takes arrays, returns a matplotlib ``Figure``, and uses no global state."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter, ScalarFormatter

from leanbayes.lab.report.read import Numbers
from leanbayes.lab.report.render import GRID, INK

__all__ = [
    "GLYPHS",
    "PALETTE",
    "Point",
    "bin_shares",
    "doubt_of_cases",
    "histograms",
    "intervals",
    "layers",
    "pooled",
    "ranges",
    "referral",
    "reliability",
    "reliability_bins",
    "risk_coverage",
    "sigma_map",
    "tradeoff",
]

# Six colours of Okabe and Ito, which readers with colour blindness can tell apart.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_MARKERS = ("o", "s", "^", "D", "v", "P")
GLYPHS = ("●", "■", "▲", "◆", "▼", "✚")  # the same marks as characters, for the legends of the page
_DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 1)), (0, (8, 2)))


class Point(NamedTuple):
    """A method in the plane of cost and quality; ``half`` is half the width of its interval, and 0 if it has none."""

    method: int
    cost: float
    quality: float
    half: float


def _axes(
    x_label: str, y_label: str, height: float = 2.5, width: float = 3.4, left: float = 0.58, right: float = 0.12
) -> tuple[Figure, Axes]:
    """Axes with fixed margins in inches. Their labels are short, and matplotlib's own layout takes twice the time."""
    figure = Figure(figsize=(width, height), facecolor="none")
    rectangle = (left / width, 0.42 / height, 1 - (left + right) / width, 1 - 0.52 / height)
    axes = figure.add_axes(rectangle, facecolor="none")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GRID)
    axes.tick_params(which="both", color=GRID, labelcolor=INK, labelsize=8, length=3)
    axes.set_xlabel(x_label, color=INK, fontsize=8.5)
    axes.set_ylabel(y_label, color=INK, fontsize=8.5)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def short(value: float, _: object = None) -> str:
    """Write a number in at most three digits, with a suffix for large ones.

    >>> short(3.4e6), short(0.05), short(1e13)
    ('3.4M', '0.05', '10T')
    """
    for unit, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.3g}{suffix}"
    return f"{value:.3g}"


def tradeoff(points: Sequence[Point], x_label: str, y_label: str) -> Figure:
    """Draw quality against cost, one mark for each method; the cost axis is logarithmic if methods are far apart."""
    figure, axes = _axes(x_label, y_label, height=2.7)
    for method, cost, quality, half in points:
        axes.errorbar(
            cost, quality, yerr=half or None, fmt=_MARKERS[method % 6], color=PALETTE[method % 6],
            markersize=7, capsize=3, elinewidth=1.2,
        )  # fmt: skip
    costs = [point.cost for point in points]
    if min(costs) > 0 and max(costs) > 4 * min(costs):
        axes.set_xscale("log")
        axes.set_xlim(min(costs) / 1.4, max(costs) * 1.4)
        several = max(costs) > 30 * min(costs)
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if several else (1.0, 2.0, 5.0)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.margins(x=0.15)
    axes.xaxis.set_major_formatter(FuncFormatter(short))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(short))
    return figure


def reliability_bins(confidence: Numbers, correct: Numbers, *, bins: int = 15) -> tuple[Numbers, Numbers, Numbers]:
    """Return mean confidence, share of right answers and share of inputs of each bin (lower, upper] with inputs."""
    number = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    count = np.bincount(number, minlength=bins)
    used = count > 0
    means = [
        np.bincount(number, weights=values, minlength=bins)[used] / count[used] for values in (confidence, correct)
    ]
    return means[0], means[1], count[used] / len(confidence)


def reliability(confidence: Numbers, correct: Numbers, *, colour: str = PALETTE[0]) -> Figure:
    """Draw the share of right answers against confidence; the area of a mark is its bin's share of the inputs."""
    x, y, share = reliability_bins(confidence, correct)
    figure, axes = _axes("confidence", "share of right answers", height=3.0, width=3.14)
    axes.plot([0, 1], [0, 1], color=INK, linewidth=1, linestyle=(0, (4, 3)), alpha=0.6)
    axes.vlines(x, x, y, color=colour, linewidth=2, alpha=0.45)
    axes.scatter(x, y, s=12 + 150 * share, color=colour, linewidth=0, zorder=3)
    axes.set(xlim=(0, 1.03), ylim=(0, 1.03), aspect="equal", xticks=np.linspace(0, 1, 6), yticks=np.linspace(0, 1, 6))
    return figure


def risk_coverage(curves: Sequence[tuple[int, Numbers, Numbers]]) -> Figure:
    """Draw curves, each given as (method, coverage, risk), in one frame."""
    figure, axes = _axes("share of inputs kept, surest first", "errors among those kept", height=2.6, width=3.6)
    for method, coverage, risk in curves:
        axes.plot(coverage, risk, color=PALETTE[method % 6], linestyle=_DASHES[method % 6], linewidth=1.7)
    axes.set(xlim=(0, 1.01))
    axes.set_ylim(bottom=0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1, decimals=None))
    return figure


def doubt_of_cases(doubt: Numbers, quality: Numbers, method: int) -> Figure:
    """Draw the Dice of each case against the doubt about it."""
    figure, axes = _axes("mean total uncertainty of the case, nats", "Dice of the case", height=2.6)
    axes.scatter(doubt, quality, s=16, color=PALETTE[method % 6], marker=_MARKERS[method % 6], alpha=0.75, linewidth=0)
    axes.set(ylim=(-0.02, 1.02))
    axes.set_xlim(left=0)
    return figure


def referral(curves: Sequence[tuple[int, Numbers]]) -> Figure:
    """Draw for each method, given as (method, curve), the mean Dice that remains after each number of referrals."""
    figure, axes = _axes("share of cases referred, least sure first", "mean Dice of the others", height=2.6, width=3.6)
    for method, curve in curves:
        share = np.arange(len(curve)) / len(curve)
        axes.plot(share, curve, color=PALETTE[method % 6], linestyle=_DASHES[method % 6], linewidth=1.7)
    axes.set(xlim=(0, 1.01))
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=None))
    return figure


def bin_shares(values: Numbers, limit: float, bins: int = 24) -> Numbers:
    """Return the share of the values in each bin from 0 to ``limit``; values outside count in the bins at the ends."""
    shares: Numbers = np.histogram(np.clip(values, 0, limit), bins, (0, limit))[0] / len(values)
    return shares


def histograms(groups: Sequence[tuple[str, Numbers]], limit: float, top: float, x_label: str) -> Figure:
    """Draw groups, each given as (colour, shares of the bins up to ``limit``), on a height axis stretched near zero."""
    figure, axes = _axes(x_label, "share of the inputs", height=2.4)
    for index, (colour, share) in enumerate(groups):
        edges = np.linspace(0, limit, len(share) + 1)
        axes.stairs(share, edges, color=colour, linewidth=1.5, linestyle=_DASHES[max(0, index - 1) % 6])
        axes.stairs(share, edges, color=colour, fill=True, alpha=0.22, linewidth=0)
    axes.set_yscale("function", functions=(lambda y: np.sqrt(np.maximum(y, 0)), np.square))
    axes.set_yticks([0, 0.01, 0.05, 0.2, 0.5, 1.0])
    axes.set(xlim=(0, limit), ylim=(0, top))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    return figure


def layers(names: Sequence[str], random: Numbers, size: Numbers) -> Figure:
    """Draw the share of each layer's weights that is random, first layer on top, with their number beside the bar."""
    # A character that is not printable (half a surrogate pair) has no width, and a dollar would start a formula.
    names = ["".join(c if c.isprintable() else "?" for c in name).replace("$", r"\$") for name in names]
    left = 0.2 + 0.072 * max(map(len, names))
    figure, axes = _axes("random weights, % of the layer", "", height=0.7 + 0.23 * len(names), left=left)
    share = 100 * random / np.maximum(size, 1)
    heights = np.arange(len(names))
    axes.barh(heights, share, height=0.62, color=PALETTE[0])
    for y, width, count in zip(heights, share, random, strict=True):
        axes.annotate(short(count), (width, y), (3, 0), textcoords="offset points", va="center", color=INK, fontsize=8)
    axes.set_yticks(heights, names)
    axes.set(ylim=(len(names) - 0.4, -0.6), xlim=(0, max(share.max() * 1.2, 1e-9)))
    axes.grid(visible=False, axis="y")
    axes.set_xticks([tick for tick in MaxNLocator(4).tick_values(0, share.max()) if tick <= 100])
    return figure


def ranges(names: Sequence[str], lows: Numbers, middles: Numbers, highs: Numbers, x_label: str, line: float) -> Figure:
    """Draw a mark with a range for each name, the first on top, and a dashed line; NaN draws no line."""
    names = ["".join(c if c.isprintable() else "?" for c in name).replace("$", r"\$") for name in names]
    left = min(0.2 + 0.072 * max(map(len, names)), 2.1)
    figure, axes = _axes(x_label, "", height=0.75 + 0.2 * len(names), left=left)
    heights = np.arange(len(names))
    if np.isfinite(line):
        axes.axvline(line, color=INK, linewidth=1, linestyle=(0, (4, 3)), alpha=0.6)
    axes.hlines(heights, lows, highs, color=PALETTE[0], linewidth=2, alpha=0.55)
    axes.scatter(middles, heights, s=26, color=PALETTE[0], linewidth=0, zorder=3)
    axes.set_yticks(heights, names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.margins(x=0.08)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(ScalarFormatter(useOffset=False))  # as many digits as tell the ticks apart
    return figure


def pooled(matrix: Numbers, rows: int = 64, columns: int = 96) -> Numbers:
    """Reduce a matrix to at most this size: each block becomes the mean of its finite values, or NaN if it has none."""
    finite = np.isfinite(matrix)
    total, count = np.where(finite, matrix, 0.0), finite.astype(np.float64)
    for axis, most in ((0, rows), (1, columns)):
        length = matrix.shape[axis]
        if length > most:
            starts = np.arange(most) * length // most
            total, count = np.add.reduceat(total, starts, axis), np.add.reduceat(count, starts, axis)
    means: Numbers = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
    return means


def sigma_map(matrix: Numbers, low: float, high: float) -> Figure:
    """Draw the standard deviations σ of a layer's weights as a heat map from ``low`` to ``high``; NaN is left empty."""
    figure, axes = _axes("input", "output", right=0.75)
    rows, columns = matrix.shape
    axes.grid(visible=False)
    axes.set_facecolor(GRID)
    colours = ListedColormap(colormaps["plasma"](np.linspace(0.12, 0.92, 256))).with_extremes(bad=(0, 0, 0, 0))
    image = axes.imshow(
        np.ma.masked_invalid(pooled(matrix)), cmap=colours, vmin=low, vmax=max(high, low + 1e-12), aspect="auto",
        interpolation="none", extent=(0, columns, rows, 0),
    )  # fmt: skip
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(4, integer=True))
    bar = figure.colorbar(image, cax=axes.inset_axes((1.03, 0, 0.04, 1)))
    bar.outline.set_visible(False)
    bar.ax.tick_params(color=GRID, labelcolor=INK, labelsize=8, length=2)
    bar.locator = MaxNLocator(4)
    bar.set_label("σ", color=INK, fontsize=9)
    return figure


def intervals(predicted: Numbers, deviation: Numbers, truth: Numbers, *, points: int = 150) -> Figure:
    """Draw predicted mean ± deviation against the truth, for at most ``points`` examples spread over its range."""
    order = np.argsort(truth, kind="stable")
    chosen = order[np.unique(np.linspace(0, len(order) - 1, min(points, len(order))).round().astype(int))]
    figure, axes = _axes("truth", "predicted ± deviation", height=3.0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(5))
        axis.set_major_formatter(FuncFormatter(short))
    ends = [truth[chosen].min(), truth[chosen].max()]
    axes.plot(ends, ends, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=4)
    axes.errorbar(
        truth[chosen], predicted[chosen], yerr=np.maximum(deviation[chosen], 0), fmt="o", color=PALETTE[0],
        markersize=2.6, elinewidth=0.8, ecolor=(PALETTE[0], 0.55),
    )  # fmt: skip
    return figure
