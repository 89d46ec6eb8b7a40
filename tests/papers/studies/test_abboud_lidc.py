"""Segmentation of nodules with four raters: verdicts."""

from typing import Any

import pytest

from leanbayes_papers import Claim
from leanbayes_papers.studies import abboud_lidc as lidc
from tests.papers.made_up import made_up


@pytest.mark.parametrize(
    ("claim", "good", "bad"),
    [
        (lidc.FULL, {("dice", "vi from random weights"): 0.4}, {("dice", "vi from random weights"): 0.6}),
        (lidc.ALIGNS, {("rater agreement", "partial 1 %"): 0.6}, {("rater agreement", "partial 1 %"): 0.0}),
    ],
)
@pytest.mark.usefixtures("verdicts_only")
def test_verdicts_follow_the_numbers(claim: Claim, good: Any, bad: Any) -> None:
    assert made_up("abboud-lidc", "cpu", good)[claim.text] == "holds"
    assert made_up("abboud-lidc", "cpu", bad)[claim.text] == "does not hold"


@pytest.mark.parametrize(
    ("blind", "silent"),
    [
        ("ensemble", {lidc.MATCHES}),
        ("vi from random weights", {lidc.FULL, lidc.DOUBT}),
        ("partial 80 %", {lidc.DECLINE}),
        ("partial 1 %", {lidc.MATCHES, lidc.FULL, lidc.DECLINE, lidc.DOUBT, lidc.ALIGNS}),
    ],
)
@pytest.mark.usefixtures("verdicts_only")
def test_of_networks_that_find_no_lesions_nothing_is_said(blind: str, silent: set[Claim]) -> None:
    telling = {("dice", "vi from random weights"): 0.4, ("entropy", "partial 1 %"): 0.1}
    telling |= {("rater agreement", "partial 1 %"): 0.6, ("dice", "partial 80 %"): 0.4, ("brier", "partial 80 %"): 0.6}
    assert set(made_up("abboud-lidc", "cpu", telling).values()) == {"holds"}
    answers = made_up("abboud-lidc", "cpu", telling | {("iou/1", blind): 0.05})
    assert {text for text, answer in answers.items() if answer == "not testable here"} == {c.text for c in silent}
