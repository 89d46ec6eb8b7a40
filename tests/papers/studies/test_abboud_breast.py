"""Classification of breast images: verdicts."""

from typing import Any

import pytest

from leanbayes_papers import Claim
from leanbayes_papers.studies import abboud_breast as breast
from tests.papers.made_up import made_up


@pytest.mark.parametrize(
    ("claim", "good", "bad"),
    [
        (breast.ENTROPY, {("entropy", "partial 1 %"): 0.1}, {("entropy", "ensemble"): 0.1}),
        (breast.MATCHES, {("flops", "ensemble"): 5.0}, {("flops", "ensemble"): 0.1}),
        (breast.BELOW, {}, {("nll", "partial 1 %"): 0.1}),
    ],
)
@pytest.mark.usefixtures("verdicts_only")
def test_verdicts_follow_the_numbers(claim: Claim, good: Any, bad: Any) -> None:
    assert made_up("abboud-breast", "cpu", good)[claim.text] == "holds"
    assert made_up("abboud-breast", "cpu", bad)[claim.text] == "does not hold"
