"""Figures: means and intervals against scipy, and files that are the same every time."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from leanbayes_papers import Job, Results
from leanbayes_papers.figures import bands, by_rate, lines, maps, save_figure


def test_lines_have_means_with_students_intervals() -> None:
    values = [1.0, 2.0, 4.0]
    (axes,) = lines({"a": {0.1: values, 0.2: [5.0], 0.3: []}}, "x", "y").axes
    (container,) = axes.containers
    line, _, (bars,) = container.lines
    assert list(line.get_xdata()) == [0.1, 0.2]
    assert list(line.get_ydata()) == pytest.approx([7 / 3, 5.0])
    (low, high), (alone, _) = (segment[:, 1] for segment in bars.get_segments())
    assert (low, high) == pytest.approx(stats.t.interval(0.95, 2, np.mean(values), stats.sem(values)))
    assert alone == 5.0


def test_a_method_without_a_rate_is_a_level_line() -> None:
    methods = {"partial 1 %": 0.5, "partial 10 %": 0.4, "ensemble": 0.3}
    results = Results([(Job(name, "vi", "x", 0), {"metrics": {"nll": nll}}) for name, nll in methods.items()])
    (axes,) = by_rate(results, "nll", {"partial 1 %": 0.01, "partial 10 %": 0.1}, "NLL").axes
    drawn = {container.get_label(): container.lines[0].get_xydata().tolist() for container in axes.containers}
    assert drawn == {"partial": [[0.01, 0.5], [0.1, 0.4]], "ensemble": [[0.01, 0.3], [0.1, 0.3]]}


def test_bands_and_maps_have_a_panel_for_each_method() -> None:
    figure = bands({name: ([0.0, 1.0], [1.0, 1.0]) for name in "abcde"}, [0.0, 1.0], [0.0, 1.0], (0.2, 0.8))
    assert [axes.get_title() for axes in figure.axes if axes.get_visible()] == list("abcde")
    pictures = maps({"a": np.eye(2), "b": 3 * np.eye(2)}, "nats")
    assert {axes.images[0].get_clim() for axes in pictures.axes if axes.images} == {(0.0, 3.0)}


def test_a_file_is_the_same_every_time(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        save_figure(lines({"a": {1.0: [1.0, 2.0]}}, "x", "y"), tmp_path / folder / "a.svg")
    assert (tmp_path / "one" / "a.svg").read_bytes() == (tmp_path / "two" / "a.svg").read_bytes()
