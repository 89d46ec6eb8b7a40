"""Segmentation of skin lesions: verdicts, what is missed, and the overlays."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import recall_score

from leanbayes_papers import STUDIES, Claim, Job, Results
from leanbayes_papers import segmentation as seg
from leanbayes_papers.figures import save_figure
from leanbayes_papers.studies import abboud_isic as isic
from tests.papers.test_experiments import made_up

OURS, FULL, HELD = "partial 1 %", "vi from random weights", "partial 1 %, one draw for a batch, held statistics"


@pytest.mark.parametrize(
    ("claim", "good", "bad"),
    [
        (isic.MATCHES, {("iou/1", "ensemble"): 0.52}, {("iou/1", "ensemble"): 0.53}),
        (isic.MATCHES, {("brier", "ensemble"): 0.495}, {("brier", "ensemble"): 0.4}),
        (isic.FULL, {("iou/1", FULL): 0.4, ("brier", FULL): 0.6}, {("iou/1", FULL): 0.4, ("brier", FULL): 0.4}),
        (isic.WORSE, {("entropy", FULL): 0.6, ("missed", FULL): 0.6}, {("entropy", FULL): 0.6, ("missed", FULL): 0.4}),
        (isic.DECLINE, {("iou/1", "partial 20 %"): 0.4}, {("iou/1", "partial 20 %"): 0.6}),
        (isic.BORDERS, {("entropy@edges", OURS): 0.9}, {("entropy@inside", OURS): 0.9}),
        (isic.NORMS, {("nll", HELD): 0.6, ("iou/1", HELD): 0.4}, {("nll", HELD): 0.6, ("iou/1", HELD): 0.5}),
    ],
)
@pytest.mark.usefixtures("verdicts_only")
def test_verdicts_follow_the_numbers(claim: Claim, good: Any, bad: Any) -> None:
    assert made_up("abboud-isic", "cpu", good)[claim.text] == "holds"
    assert made_up("abboud-isic", "cpu", bad)[claim.text] == "does not hold"


@pytest.fixture
def verdicts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isic, "by_rate", lambda *arguments, **options: None)
    monkeypatch.setattr(isic, "summary", lambda *arguments, **options: None)


def test_missed_is_one_minus_recall() -> None:
    size = STUDIES["abboud-isic"].sizes["smoke"]
    job = STUDIES["abboud-isic"].jobs(size, [0])[0]
    found = STUDIES["abboud-isic"].run(job, size, None)
    task = isic._task("scenes", None, size.counts, 16, 4, 1)
    _, _, predicted = seg.train_and_segment(job, size, task)
    recall = recall_score(*(np.asarray(part).flatten() for part in (predicted.truth == 1, predicted.chosen == 1)))
    assert 0 < recall < 1
    assert found["metrics"]["missed"] == pytest.approx(1 - recall)


def test_overlays_tell_found_lesions_from_false_and_missed_ones(tmp_path: Path) -> None:
    truth, chosen = [[[0, 0], [1, 1]]], [[[0, 1], [0, 1]]]
    rows = {"a": {"truth": truth, "chosen": chosen, "doubt": [[[0.0, 0.1], [0.2, 0.6]]]}}
    figure = seg.pictures(rows, 2, against=True)
    shown = [axes.images[0] for axes in figure.axes]
    assert np.array_equal(shown[1].get_array(), [[0, 2], [3, 1]])
    assert shown[2].get_clim() == (0, pytest.approx(np.log(2)))
    plain = seg.pictures(rows, 2)
    assert np.array_equal(plain.axes[1].images[0].get_array(), chosen[0])
    save_figure(figure, tmp_path / "a.svg")
    assert (tmp_path / "a.svg").stat().st_size > 1000


def test_only_runs_with_pictures_are_shown() -> None:
    rows = [(Job("a", "vi", "x", 0), {"metrics": {}}), (Job("b", "vi", "x", 0), {"chosen": [], "doubt": []})]
    assert list(seg.results_with_pictures(Results(rows), ("a", "b", "c"))) == ["b"]
