"""Which figures the arrays suffice for, and the words that stand beside them."""

from pathlib import Path

import numpy as np

from leanbayes.lab.report.read import Arrays
from leanbayes.lab.report.sections import headline_metric, sections
from leanbayes.lab.report.table import comparison_table


def figures(by_key, **changes):
    """The figures of one method ``a``, by name; ``changes`` are fields of its row, or of the task."""
    task = {"shifted": changes.pop("shifted", {}), "classes": changes.pop("classes", [])}
    results = {"task": task, "methods": [{"name": "a", **changes}]}
    arrays = Arrays(Path("arrays"), {key: np.asarray(value, dtype=float) for key, value in by_key.items()})
    return {section.name: section for section in sections(results, comparison_table(results), arrays)}


def test_arrays_without_a_finite_value_leave_their_figure_out():
    keys = ("confidence", "correct", "entropy", "predicted", "deviation", "truth", "shifted/s/entropy")
    arrays = {f"a/{key}": np.full(5, np.nan) for key in keys}
    assert figures({**arrays, "a/sigma": np.full((2, 2), np.nan)}, shifted={"s": 5}) == {}


def test_all_right_answers_and_one_tie_are_drawn():
    arrays = {"a/confidence": np.ones(4), "a/correct": np.ones(4), "a/entropy": np.zeros(4)}
    assert list(figures(arrays)) == ["reliability", "risk", "errors"]


def test_the_gap_is_that_of_the_bins():
    confidence, correct = np.repeat([0.55, 0.95], 10), np.repeat([0.0, 1.0, 0.0, 1.0], [5, 5, 2, 8])
    (panel,) = figures({"a/confidence": confidence, "a/correct": correct})["reliability"].panels
    assert panel.note == "mean gap to the line: 0.100"  # (|.55 − .5| + |.95 − .8|) / 2
    assert panel.title == "a"


def test_many_layers_are_cut_and_it_is_said():
    layers = [{"name": f"layer{i}.{'x' * 40}", "random": i, "size": 50} for i in range(45)]
    (panel,) = figures({}, layers=layers)["layers"].panels
    assert panel.note == "990 random weights; 24 layers with fewer of them are not drawn"
    assert "layer44" in panel.alternative


def test_unfamiliar_inputs_are_compared_by_one_entropy_for_each_input():
    arrays = {"a/entropy": [0.0, 1.0, 0.0, 1.0], "a/shifted/s/entropy": [0.7, 0.9]}
    (panel,) = figures(arrays, shifted={"s": 2})["shifted"].panels
    assert panel.alternative.endswith("means 0.500 and 0.800")
    (panel,) = figures(arrays | {"a/input_entropy": [0.2, 0.4]}, shifted={"s": 2})["shifted"].panels
    assert panel.alternative.endswith("means 0.300 and 0.800")


def test_intervals_say_how_many_truths_they_cover():
    arrays = {"a/predicted": np.zeros(4), "a/deviation": np.ones(4), "a/truth": [0.0, 1.9, -1.9, 2.0]}
    (panel,) = figures(arrays)["intervals"].panels
    assert panel.note.startswith("75 % of the truths")


def test_bars_are_explained_only_where_there_are_any():
    runs = [{"seed": seed, "metrics": {"nll": 1.0 + seed}, "cost": {"parameters": 3}} for seed in (0, 1)]
    assert "Bars are 95 % intervals" in figures({}, runs=runs)["cost"].caption
    assert "Bars" not in figures({}, runs=runs[:1])["cost"].caption


def test_the_headline_is_nll_or_the_first_metric():
    def rows(**metrics):
        return comparison_table({"methods": [{"name": "a", "runs": [{"metrics": metrics, "cost": {"bytes": 1}}]}]})

    assert headline_metric(rows(accuracy=1.0, nll=2.0)) == "nll"
    assert headline_metric(rows(rmse=1.0, crps=2.0)) == "rmse"
    assert headline_metric(rows()) is None
    assert headline_metric([]) is None
