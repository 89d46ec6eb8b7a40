"""Segmentation of street scenes: verdicts, and what is measured by place against numpy."""

from typing import Any

import pytest

from leanbayes_papers import Claim
from leanbayes_papers import segmentation as seg
from leanbayes_papers.studies import subnetworks_camvid as camvid
from tests.papers.made_up import made_up

OURS, FULL = "partial 1 %", "vi from random weights"


@pytest.mark.parametrize(
    ("claim", "good", "bad"),
    [
        (camvid.LOSS, {}, {("miou", OURS): 0.4}),
        (camvid.LOSS, {("miou", OURS): 0.48}, {("miou", OURS): 0.46}),
        (camvid.COMPARABLE, {("miou", "ensemble"): 0.53}, {("miou", "ensemble"): 0.6}),
        (camvid.COMPARABLE, {}, {("brier", "ensemble"): 0.3}),
        (camvid.FULL, {("miou", FULL): 0.3}, {("miou", FULL): 0.45}),
        (camvid.START, {("miou", "vi"): 0.6}, {("miou", "vi"): 0.4}),
        (camvid.FAIR, {}, {("miou", seg.LONGER): 0.6}),
        (
            camvid.DOUBT,
            {("entropy@wrong", OURS): 0.9, ("entropy@edges", OURS): 0.9},
            {("entropy@wrong", OURS): 0.9, ("entropy@edges", OURS): 0.1},
        ),
        (camvid.ENDS, {("random@middle", OURS): 0.1}, {("random@input", OURS): 0.9}),
    ],
)
@pytest.mark.usefixtures("verdicts_only")
def test_verdicts_follow_the_numbers(claim: Claim, good: Any, bad: Any) -> None:
    assert made_up("subnetworks-camvid", "cpu", good)[claim.text] == "holds"
    assert made_up("subnetworks-camvid", "cpu", bad)[claim.text] == "does not hold"
