"""Methods are ranked by the size of their sets at equal coverage, and figures show what a guarantee kept."""

from pathlib import Path

import numpy as np
import pytest

from leanbayes.conformal import clopper_pearson
from leanbayes.lab.report.guarantee import coverage, equal_coverage_metric, ranked, ranking_line, risk, sizes
from leanbayes.lab.report.page import write_report
from leanbayes.lab.report.read import Arrays
from leanbayes.lab.report.table import comparison_table
from tests.lab.report.fixtures import save


def record(sizes_of: dict[str, list[float | None]], metric: str = "size_at_90", **more: float) -> dict:
    methods = [
        {"name": name, "runs": [{"seed": i, "metrics": {metric: v, **more}} for i, v in enumerate(values)]}
        for name, values in sizes_of.items()
    ]
    return {"format": 1, "task": {"classes": ["cat", "dog"]}, "methods": methods}


def arrays(**parts: list) -> Arrays:
    by_key = {f"a/conformal/{name}": np.array(rows, dtype=np.float64) for name, rows in parts.items()}
    return Arrays(Path("arrays"), by_key)


@pytest.mark.parametrize("metric", ["size_at_90", "width_at_90", "marked_at_10"])
def test_the_smallest_sets_come_first_and_methods_without_a_size_last(metric: str) -> None:
    rows = comparison_table(record({"a": [2.0, 3.0], "none": [], "b": [1.0, 1.5], "bad": [None]}, metric))
    assert equal_coverage_metric(rows) == metric
    assert [row.method for row in ranked(rows)] == ["b", "a", "none", "bad"]
    line = ranking_line(rows)
    assert line.index("b (1.250") < line.index("a (2.500")
    assert "none" not in line
    section = sizes(rows)
    assert section is not None
    assert section.panels[0].alternative.index("b: 1.250") < section.panels[0].alternative.index("a: 2.500")
    assert "intervals over seeds" in section.caption


def test_nothing_to_rank() -> None:
    rows = comparison_table(record({"a": [1.0], "b": [2.0]}, "nll"))
    assert (equal_coverage_metric(rows), ranking_line(rows), sizes(rows)) == (None, "", None)
    assert [row.method for row in ranked(rows)] == ["a", "b"]
    assert sizes(comparison_table(record({"a": [1.0]}))) is None


def test_coverage_has_a_row_for_each_part_with_its_exact_interval() -> None:
    found = coverage(
        ["a", "plain"],
        ["cat", "dog"],
        ["clinic A", "clinic B"],
        arrays(
            **{
                "level": [0.9],
                "all": [[0, 90, 100]],
                "class": [[0, 40, 50], [1, 50, 50]],
                "size": [[0, 0, 1], [1, 90, 99]],
            },
            group=[[1, 40, 50], [7, 50, 50]],
        ),
    )
    (panel,) = found.panels
    low, high = clopper_pearson(90, 100)
    assert panel.note == f"promised 0.9; all: 0.900, exact 95 % interval {low:.3f} to {high:.3f}"
    assert (
        panel.alternative
        == "Coverage of a: all 0.900; cat 0.800; dog 1.000; clinic B 0.800; group 7 1.000; size 1 0.909"
    )


def test_of_many_classes_the_worst_are_drawn_and_intervals_have_quarters() -> None:
    many = [[c, c, 100] for c in range(100)]
    (panel,) = coverage(["a"], [], [], arrays(**{"level": [0.9], "all": [[0, 9, 10]], "class": many})).panels
    assert "class 19 " in panel.alternative
    assert "class 20 " not in panel.alternative
    quarters = arrays(level=[0.9], all=[[0, 9, 10]], size=[[0, 4, 5], [3, 5, 5]])
    (panel,) = coverage(["a"], [], [], quarters).panels
    assert "narrowest quarter 0.800; widest quarter 1.000" in panel.alternative


@pytest.mark.parametrize("bad", [[[0, np.nan, 10]], [[0, 9]], [[0, 11, 10]], [[0, 0, 0]]])
def test_arrays_that_make_no_sense_leave_the_figure_out(bad: list) -> None:
    assert coverage(["a"], [], [], arrays(level=[0.9], all=bad)).panels == ()


def test_the_page_ranks_and_shows_the_guarantee(tmp_path: Path) -> None:
    more = {"conformal_coverage": 0.91, "conformal_coverage/low": 0.89, "conformal_coverage/high": 0.93}
    more |= {"conformal_size": 1.2, "conformal_class_coverage/cat": 0.8, "conformal_group_coverage/1": 0.7}
    content = record({"a": [2.0], "b": [1.0]}, **more)
    by_key = {"a/conformal/level": np.array([0.9]), "a/conformal/all": np.array([[0.0, 91, 100]])}
    page = write_report(save(tmp_path, content, by_key)).read_text()
    table = page[page.index('<section id="guarantee">') : page.index('<section id="parts">')]
    assert "ranked by the first column, Set size at 90 %" in table
    assert table.index('data-value="b"') < table.index('data-value="a"')
    for title in ("Set size at 90 %", "Conformal coverage, low", "Conformal coverage, high", "Conformal size"):
        assert title in table
    parts = page[page.index('<section id="parts">') : page.index('<section id="sizes">')]
    assert "Class coverage, cat" in parts
    assert "Group coverage, 1" in parts
    assert '<section id="coverage">' in page


def test_risk_has_a_row_for_all_cases_and_for_each_subgroup() -> None:
    parts = arrays(level=[0.1], risk=[[0, 0.08, 0.03, 0.15]], group_risk=[[0, 0.05, 0.0, 0.3], [1, 0.2, 0.1, 0.4]])
    (panel,) = risk(["a", "plain"], ["clinic A", "clinic B"], parts).panels
    assert panel.note == "promised at most 0.1; measured 0.080, 95 % interval 0.030 to 0.150"
    assert panel.alternative == "Loss of the masks of a: all 0.080; clinic A 0.050; clinic B 0.200"


@pytest.mark.parametrize("bad", [[[0, np.nan, 0, 1]], [[0, 0.1]]])
def test_risks_that_make_no_sense_leave_the_figure_out(bad: list) -> None:
    assert risk(["a"], [], arrays(level=[0.1], risk=bad)).panels == ()
    assert risk(["a"], [], arrays(risk=[[0, 0.1, 0, 1]])).panels == ()


def test_the_page_ranks_masks_and_shows_their_risk(tmp_path: Path) -> None:
    more = {"conformal_risk": 0.08, "conformal_risk/low": 0.03, "conformal_risk/high": 0.15}
    more |= {"conformal_marked": 0.3, "conformal_group_risk/clinic A": 0.05}
    content = record({"a": [0.4], "b": [0.3]}, "marked_at_10", **more)
    by_key = {"a/conformal/level": np.array([0.1]), "a/conformal/risk": np.array([[0.0, 0.08, 0.03, 0.15]])}
    page = write_report(save(tmp_path, content, by_key)).read_text()
    table = page[page.index('<section id="guarantee">') : page.index('<section id="parts">')]
    assert "Masks with a guarantee" in table
    assert "ranked by the first column, Marked at 10 % missed" in table
    assert table.index('data-value="b"') < table.index('data-value="a"')
    for title in ("Conformal risk, low", "Conformal risk, high", "Conformal share marked"):
        assert title in table
    assert "Group risk, clinic A" in page[page.index('<section id="parts">') :]
    assert '<section id="losses">' in page
