"""Histograms: against the exact functions and within their own bounds, however the stream is cut."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leanbayes.metrics import Findings, aupr, aurc, auroc, fpr95
from leanbayes.metrics.calibration import error_of_bins, mass_bins
from leanbayes.metrics.histogram import Histogram, detection, log_cell
from leanbayes.metrics.ranking import area_under_risk, tied


def _filled(scores: Tensor, columns: Tensor, step: int) -> Histogram:
    histogram = Histogram(columns.shape[1])
    for part, rows in zip(scores.split(step), columns.split(step), strict=True):
        histogram.add(part, rows)
    return histogram


def test_cells_are_in_order_and_narrow() -> None:
    scores = torch.logspace(-18, 18, 200_001, dtype=torch.float64)
    cells = log_cell(scores, 64, 64, 1024)
    assert (cells.diff() >= 0).all()
    assert cells.min() >= 0
    assert cells.max() < 2 * 64 * 1024
    together = cells.diff() == 0
    assert (scores[1:][together] / scores[:-1][together]).max() <= 1 + 2**-10
    apart = scores[:-1] * (1 + 2**-9)
    assert (log_cell(apart, 64, 64, 1024) > cells[:-1]).all()


def test_the_ends_take_what_is_outside() -> None:
    ends = torch.tensor([0.0, 2.0**-80, 2.0**80, torch.inf], dtype=torch.float64)
    assert log_cell(ends, 64, 64, 1024).tolist() == [0, 0, 131071, 131071]
    assert log_cell(torch.tensor([0.5, 1.0]), 32, 0, 64).tolist() == [31 * 64, 32 * 64 - 1]


@pytest.mark.parametrize("spread", [1.0, 1e-3, 1e-5])
@pytest.mark.parametrize("step", [1000, 77])
def test_detection_is_within_its_bounds(spread: float, step: int) -> None:
    """The narrower the scores lie together, the more share a cell; the bounds know."""
    generator = torch.Generator().manual_seed(0)
    low = 1 + spread * torch.rand(3000, generator=generator, dtype=torch.float64)
    high = 1 + spread * (0.3 + torch.rand(2000, generator=generator, dtype=torch.float64))
    ones = [torch.ones(len(side), 1) for side in (low, high)]
    tables = [_filled(side, one, step).table[:, 0] for side, one in zip((low, high), ones, strict=True)]
    findings = Findings()
    detection(findings, "x", *tables, missing=("", ""))
    for name, exact in (("auroc", auroc), ("aupr", aupr), ("fpr95", fpr95)):
        off = abs(findings.metrics[f"x/{name}"] - exact(low, high).item())
        assert off <= findings.bounds[f"x/{name}"] + 1e-12
    if spread == 1.0:
        assert max(findings.bounds.values()) < 0.01
    if spread == 1e-5:
        assert off > 0.05  # all in one cell: the bound is needed


@given(
    st.lists(st.floats(0, 4), min_size=1, max_size=30),
    st.lists(st.floats(0, 4), min_size=1, max_size=30),
)
@settings(max_examples=60, deadline=None)
def test_detection_bounds_hold_for_any_scores(low: list[float], high: list[float]) -> None:
    a, b = (torch.tensor(side, dtype=torch.float64) for side in (low, high))
    tables = [_filled(side, torch.ones(len(side), 1), 7).table[:, 0] for side in (a, b)]
    findings = Findings()
    detection(findings, "x", *tables, missing=("", ""))
    for name, exact in (("auroc", auroc), ("aupr", aupr), ("fpr95", fpr95)):
        assert abs(findings.metrics[f"x/{name}"] - exact(a, b).item()) <= findings.bounds[f"x/{name}"] + 1e-12


@given(st.lists(st.tuples(st.floats(1, 1.004), st.floats(0, 3)), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_the_area_under_risk_is_within_its_bound(pairs: list[tuple[float, float]]) -> None:
    scores, losses = torch.tensor(pairs, dtype=torch.float64).T
    table = _filled(scores, torch.stack([torch.ones_like(losses), losses], 1), 9).table
    value, bound = area_under_risk(table)
    assert abs(value.item() - aurc(scores, losses).item()) <= bound.item() + 1e-12


@given(st.lists(st.tuples(st.floats(0.3, 0.302), st.booleans()), min_size=1, max_size=40), st.integers(1, 6))
@settings(max_examples=80, deadline=None)
def test_bins_of_equal_mass_are_within_their_bound(pairs: list[tuple[float, bool]], bins: int) -> None:
    doubt, correct = torch.tensor(pairs, dtype=torch.float64).T
    columns = torch.stack([torch.ones_like(doubt), 1 - doubt, correct], dim=1)
    exact = error_of_bins(mass_bins(tied(-doubt, columns), bins)[0])
    result, bound = mass_bins(_filled(doubt, columns, 9).table.flip(0), bins, width=2**-10)
    assert abs(error_of_bins(result) - exact) <= bound + 1e-12


def test_a_histogram_does_not_depend_on_the_cut() -> None:
    scores = torch.rand(5000, generator=torch.Generator().manual_seed(0))
    columns = torch.ones(5000, 1)
    assert torch.equal(_filled(scores, columns, 5000).table, _filled(scores.flip(0), columns, 13).table)


def test_one_side_missing_is_said() -> None:
    findings = Findings()
    detection(findings, "error", torch.ones(4), torch.zeros(4), missing=("no right", "no prediction is wrong"))
    assert findings.metrics == {}
    assert "no prediction is wrong" in findings.notes[0]
