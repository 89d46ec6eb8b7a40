"""Corruptions of CIFAR-10: verdicts."""

from typing import Any

import pytest

from leanbayes_papers import Claim
from leanbayes_papers.studies import subnetworks_shifts as shifts
from tests.papers.made_up import made_up


@pytest.mark.parametrize(
    ("claim", "good", "bad"),
    [
        (shifts.ROBUST, {("lost accuracy", "partial 5 %"): 0.1}, {("lost accuracy", "dropout"): 0.1}),
        (shifts.ENTROPY, {("entropy@severity 5", "partial 5 %"): 0.9}, {}),
    ],
)
@pytest.mark.usefixtures("verdicts_only")
def test_verdicts_follow_the_numbers(claim: Claim, good: Any, bad: Any) -> None:
    assert made_up("subnetworks-shifts", "cpu", good)[claim.text] == "holds"
    assert made_up("subnetworks-shifts", "cpu", bad)[claim.text] == "does not hold"
