"""UCI regression: verdicts, and units."""

from typing import Any

import numpy as np
import pytest

from leanbayes_papers import STUDIES, Claim, Job
from leanbayes_papers.studies import uci
from tests.papers.made_up import made_up


@pytest.mark.parametrize(
    ("claim", "good", "bad"),
    [
        (uci.PARTIAL, {("nll", "ensemble"): 0.51}, {("rmse", "ensemble"): 0.3}),
        (uci.ONE_PASS, {("nll", "vi by moments"): 0.1}, {("nll", "vi by moments"): 0.9}),
    ],
)
@pytest.mark.usefixtures("verdicts_only")
def test_verdicts_follow_the_numbers(claim: Claim, good: Any, bad: Any) -> None:
    assert made_up("uci", "cpu", good)[claim.text] == "holds"
    assert made_up("uci", "cpu", bad)[claim.text] == "does not hold"


def test_uci_is_in_the_units_of_the_table() -> None:
    """A plain network's RMSE and NLL, computed anew from the raw table's scale."""
    size = STUDIES["uci"].sizes["smoke"]
    metrics = STUDIES["uci"].run(Job("deterministic", "deterministic", "made-up", 0), size, None)["metrics"]
    source = uci._source("made-up", None, 0)
    scale = source.preparation.target_std[0]
    assert metrics["rmse in units"] == pytest.approx(metrics["rmse"] * scale)
    assert metrics["nll in units"] == pytest.approx(metrics["nll"] + np.log(scale))
    assert len(STUDIES["uci"].jobs(STUDIES["uci"].sizes["paper"], range(20))) == 15 * (8 * 20 + 5)
