"""Figures that several studies draw: lines with intervals, bands around curves, and maps side by side."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from leanbayes._files import write_bytes
from leanbayes.lab.report.plots import PALETTE, short
from leanbayes.lab.statistics import interval
from leanbayes_papers.study import Results

__all__ = ["bands", "by_rate", "lines", "maps", "save_figure"]

_MARKS = "os^DvP"


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as SVG, with the same bytes every time."""
    buffer = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none"}):
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})
    write_bytes(path, buffer.getvalue())


def lines(
    series: Mapping[str, Mapping[float, Sequence[float]]], x_label: str, y_label: str, *, log: bool = False
) -> Figure:
    """Draw means against x with 95 % intervals; ``series`` holds the values of the runs by name and x."""
    figure = Figure(figsize=(4.6, 3.0))  # fixed margins, because matplotlib's own layout takes as long as the drawing
    axes = figure.add_axes((0.15, 0.16, 0.82, 0.8))
    for number, (name, points) in enumerate(series.items()):
        means = {x: interval(values) for x, values in sorted(points.items()) if values}
        middle = [mean.mean for mean in means.values()]
        half = [0.0 if mean.high is None else mean.high - mean.mean for mean in means.values()]
        mark, colour = _MARKS[(number + number // 6) % 6], PALETTE[number % 6]  # 36 different pairs
        axes.errorbar(list(means), middle, yerr=half, label=name, marker=mark, color=colour, capsize=2, markersize=4)
    if log:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(short))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.legend(fontsize=7)
    return figure


def by_rate(results: Results, measure: str, rates: Mapping[str, float], y_label: str) -> Figure:
    """Draw a measure against the share of random weights; methods without such a share are level lines."""
    span = (min(rates.values()), max(rates.values()))
    series: dict[str, dict[float, list[float]]] = {"partial": {}}
    for method in results.methods():
        values = list(results.column(measure, method).values())
        if method in rates:
            series["partial"][rates[method]] = values
        else:
            series[method] = dict.fromkeys(span, values)
    return lines(series, "share of random weights", y_label, log=True)


def bands(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    x: Sequence[float],
    truth: Sequence[float],
    inside: tuple[float, float],
    width: float = 3.0,
) -> Figure:
    """Draw the mean and ``width`` deviations of each method around a true curve; dashed lines end the training data."""
    figure, panels = _panels(len(curves), 2.2)
    for axes, (name, (mean, deviation)) in zip(panels, curves.items(), strict=True):
        middle, half = np.asarray(mean), width * np.asarray(deviation)
        axes.fill_between(x, middle - half, middle + half, color="0.8", linewidth=0)
        axes.plot(x, truth, color=PALETTE[0], linewidth=1.2)
        axes.plot(x, middle, color=PALETTE[1], linewidth=1.2)
        for end in inside:
            axes.axvline(end, color="0.4", linewidth=0.8, linestyle="--")
        axes.set_title(name, fontsize=8)
        axes.tick_params(labelsize=7)
    return figure


def maps(pictures: Mapping[str, Any], label: str) -> Figure:
    """Draw matrices side by side on one scale."""
    figure, panels = _panels(len(pictures), 1.9)
    arrays = {name: np.asarray(picture, dtype=np.float64) for name, picture in pictures.items()}
    top = max(array.max() for array in arrays.values())
    image = None
    for axes, (name, array) in zip(panels, arrays.items(), strict=True):
        image = axes.imshow(array, vmin=0, vmax=max(top, 1e-12), cmap="plasma")
        axes.set_title(name, fontsize=8)
        axes.set_axis_off()
    if image is not None:
        figure.colorbar(image, cax=figure.add_axes((0.9, 0.2, 0.015, 0.6)), label=label)
    return figure


def _panels(count: int, side: float) -> tuple[Figure, list[Any]]:
    columns = min(count, 4)
    rows = -(-count // columns)
    figure = Figure(figsize=(side * columns, side * rows))
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    figure.subplots_adjust(0.1, 0.1, 0.87, 0.88, 0.25, 0.3)
    for empty in grid[count:]:
        empty.set_visible(False)
    return figure, list(grid[:count])
