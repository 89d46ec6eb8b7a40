import math

import numpy as np
import pytest
from scipy import stats

from leanbayes.lab.report import comparison_table, describe
from leanbayes.lab.report.table import direction
from leanbayes.metrics import METRICS, Metric


def record(better=None, **methods):
    """{"a": [{"nll": 1.0}, …]} as a comparison with one run per entry."""
    listed = [
        {"name": name, "error": None, "runs": [{"seed": i, "metrics": metrics} for i, metrics in enumerate(runs)]}
        for name, runs in methods.items()
    ]
    return {"methods": listed, "better": better or {}}


def best(rows, column):
    return [row.method for row in rows if row.cells[column].best]


def test_the_interval_is_that_of_scipy():
    values = [0.31, 0.29, 0.34, 0.30]
    cell = comparison_table(record(a=[{"nll": value} for value in values]))[0].cells["nll"]
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert cell.mean == pytest.approx(np.mean(values), abs=1e-15)
    assert cell.mean - cell.half == pytest.approx(low, abs=1e-12)
    assert cell.mean + cell.half == pytest.approx(high, abs=1e-12)
    assert cell.seeds == 4


def test_one_seed_has_no_interval_and_no_sign_of_one():
    cell = comparison_table(record(a=[{"nll": 0.25}]))[0].cells["nll"]
    assert (cell.mean, cell.half, cell.text) == (0.25, None, "0.250")


def test_the_best_follows_the_direction_and_ties_share_it():
    runs = {"a": [{"acc": 0.9, "nll": 0.9, "x": 1}], "b": [{"acc": 0.8, "nll": 0.1, "x": 2}], "c": [{"acc": 0.9}]}
    rows = comparison_table(record({"acc": "high", "nll": "low"}, **runs))
    assert best(rows, "acc") == ["a", "c"]
    assert best(rows, "nll") == ["b"]
    assert best(rows, "x") == []


def test_a_single_method_is_not_called_the_best():
    assert best(comparison_table(record({"nll": "low"}, a=[{"nll": 1.0}], b=[])), "nll") == []


def test_not_finite_is_said_and_never_best():
    rows = comparison_table(
        record({"nll": "low", "acc": "high"}, a=[{"nll": math.nan, "acc": math.inf}, {"nll": 0.1, "acc": 1.0}],
               b=[{"nll": 0.5, "acc": 0.5}], c=[{"nll": 0.6, "acc": 0.4}])
    )  # fmt: skip
    assert rows[0].cells["nll"].text == rows[0].cells["acc"].text == "not finite"
    assert best(rows, "nll") == best(rows, "acc") == ["b"]


def test_missing_values_leave_a_dash_and_count_the_seeds_that_have_one():
    rows = comparison_table(record(a=[{"nll": None}, {"nll": 0.5}, {}], b=[{"acc": 1.0}], c=[]))
    assert [row.cells["nll"].seeds for row in rows] == [1, 0, 0]
    assert rows[0].cells["nll"].half is None
    assert rows[1].cells["nll"].text == rows[2].cells["nll"].text == "–"
    assert [list(row.cells) for row in rows] == [["nll", "acc"]] * 3


def test_costs_stand_after_metrics_under_their_own_names():
    run = {"seed": 7, "cost": {"bytes": 4, "nll": 1}, "metrics": {"nll": 2.5}}
    row = comparison_table({"methods": [{"name": "a", "runs": [run]}]})[0]
    assert {name: cell.mean for name, cell in row.cells.items()} == {"nll": 2.5, "cost/bytes": 4, "cost/nll": 1}
    assert next(iter(row.cells)) == "nll"
    assert (row.seeds, row.error) == ((7,), None)


def test_failed_and_empty_comparisons():
    assert comparison_table({"methods": []}) == []
    row = comparison_table({"methods": [{"name": "a", "error": "no memory", "runs": []}]})[0]
    assert (row.error, row.cells, row.seeds) == ("no memory", {}, ())


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([0.9721, 0.95], ["0.972", "0.950"]),
        ([0.0123, 0.00456], ["0.0123", "0.0046"]),
        ([31.26, 6.1], ["31.26", "6.10"]),
        ([234.56, 6.1], ["234.6", "6.1"]),
        ([1280, 0], ["1280", "0"]),
        ([147_520, 29_504], ["147.5k", "29.5k"]),
        ([1_234_567, 100_000], ["1.235M", "0.100M"]),
        ([3.9e11, 2e12], ["0.390T", "2.000T"]),
        ([1e30], ["1000000000000000.0P"]),
        ([-0.5, 1.25], ["-0.500", "1.250"]),
        ([0.0], ["0"]),
        ([1e-12], ["0.000000000"]),
        ([999.9996], ["1000.0"]),
    ],
)  # fmt: skip
def test_a_column_is_written_in_one_unit(values, texts):
    rows = comparison_table(record(**{f"m{i}": [{"x": value}] for i, value in enumerate(values)}))
    assert [row.cells["x"].text for row in rows] == texts


def test_what_does_not_vary_shows_no_interval_and_units_are_repeated():
    rows = comparison_table(record(a=[{"n": 50_000}, {"n": 50_000}], b=[{"n": 40_000}, {"n": 42_000}]))
    assert [row.cells["n"].text for row in rows] == ["50.00k", "41.00k ± 12.71k"]
    assert rows[0].cells["n"].half == 0


def test_words_and_directions_are_those_of_the_metric():
    with METRICS.replacing(Metric("surprise", "low", "Surprise", "How surprised the truth would be.")):
        assert describe("surprise") == ("Surprise", "How surprised the truth would be.")
        rows = comparison_table(record(a=[{"surprise": 2.0}], b=[{"surprise": 1.0}]))
    assert best(rows, "surprise") == ["b"]
    assert direction("cost/parameters", {}) == "low"


def test_a_metric_that_this_program_does_not_know_has_the_direction_of_the_record():
    assert describe("cost/of_theirs") == ("of theirs", "")
    assert direction("theirs", {"better": {"theirs": "high"}}) == "high"
    assert direction("theirs", {"better": {"theirs": "sideways"}}) is None
    assert direction("theirs", {}) is None


def test_where_all_are_equal_none_is_the_best():
    assert best(comparison_table(record(a=[{"nll": 1.0}], b=[{"nll": 1.0}])), "nll") == []


def test_equivalents_beyond_both_ends_are_sorted_there_and_the_best_is_marked():
    texts = {"a": (None, "<1"), "b": (2.5, "2.5"), "c": (None, ">3"), "d": (None, ">3")}
    methods = [{"name": name, "runs": [{"seed": 0, "metrics": {"nll": 0.1}}]} for name in (*texts, "e")]
    known = {name: {"value": value, "text": text} for name, (value, text) in texts.items()}
    results = {"methods": methods, "ensemble_equivalent": {"nll": [3, 2, 1], "methods": known}}
    cells = [row.cells["ensemble_equivalent"] for row in comparison_table(results)]
    assert [cell.text for cell in cells] == ["<1", "2.5", ">3", ">3", "–"]
    assert [cell.mean for cell in cells] == [0.0, 2.5, 4.0, 4.0, None]
    assert [cell.best for cell in cells] == [False, False, True, True, False]
    for record in (None, {"reason": "no ensemble"}, {}):
        rows = comparison_table({"methods": methods, "ensemble_equivalent": record})
        assert "ensemble_equivalent" not in rows[0].cells
