"""Segmentation of skin lesions: verdicts, what is missed, and the overlays."""

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import recall_score

from leanbayes_papers import STUDIES, Claim
from leanbayes_papers import segmentation as seg
from leanbayes_papers.studies import abboud_isic as isic
from tests.papers.made_up import made_up

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


def test_missed_is_one_minus_recall() -> None:
    size = STUDIES["abboud-isic"].sizes["smoke"]
    job = STUDIES["abboud-isic"].jobs(size, [0])[0]
    result = STUDIES["abboud-isic"].run(job, size, None)
    task = isic._task("scenes", None, size.counts, 16, 4, 1)
    _, _, predicted = seg.train_and_segment(job, size, task)
    recall = recall_score(*(np.asarray(part).flatten() for part in (predicted.truth == 1, predicted.chosen == 1)))
    assert 0 < recall < 1
    assert result["metrics"]["missed"] == pytest.approx(1 - recall)
