"""Table 1 of sensitivity-guided subnetworks: verdicts, and counts against closed forms."""

from typing import Any

import pytest

from leanbayes_papers import STUDIES, Claim, Job
from leanbayes_papers.studies import subnetworks_cost as cost
from tests.papers.made_up import made_up

OURS, STEP, TRAINING = "partial 1 %", "flops of a step", "flops of training"


@pytest.mark.parametrize(
    ("claim", "good", "bad"),
    [
        (cost.PARAMETERS, {}, {("parameters", "partial 20 %"): 0.51}),
        (
            cost.FEWER,
            {("parameters", "vi"): 0.9, ("parameters", "ensemble"): 2.5},
            {("parameters", "vi"): 0.9, ("parameters", "ensemble"): 1.5},
        ),
        (
            cost.PLAIN,
            {("flops of a plain step", "deterministic"): 2.9},
            {("flops of a plain step", "deterministic"): 2.6},
        ),
        (cost.VI, {(STEP, "vi"): 0.54}, {(STEP, "vi"): 0.56}),
        (cost.PARTIAL, {(STEP, OURS): 0.54}, {(STEP, OURS): 0.44}),
        (cost.CHEAPER, {(TRAINING, "ensemble"): 0.8}, {(TRAINING, "ensemble"): 0.7}),
        (cost.ONE_DRAW, {(TRAINING, "ensemble"): 1.1}, {(TRAINING, "ensemble"): 0.9}),
        (cost.NEGLIGIBLE, {("sensitivity", OURS): 0.009}, {("sensitivity", OURS): 0.011}),
        (cost.MEMORY, {}, {("memory", OURS): 0.25}),
    ],
)
@pytest.mark.usefixtures("verdicts_only")
def test_verdicts_follow_the_numbers(claim: Claim, good: Any, bad: Any) -> None:
    assert made_up("subnetworks-cost", "cpu", good)[claim.text] == "holds"
    assert made_up("subnetworks-cost", "cpu", bad)[claim.text] == "does not hold"


def test_one_network_that_differs_is_enough_against_a_count() -> None:
    claim = cost.PLAIN
    assert cost._counted(claim, {"a": 3.0, "b": 3.1}, 2.7, 3.3, "step").answer == "holds"
    verdict = cost._counted(claim, {"a": 3.0, "b": 2.1}, 2.7, 3.3, "step")
    assert (verdict.answer, verdict.why) == ("does not hold", "step: a 3, b 2.1, expected from 2.7 to 3.3")
    assert cost._counted(claim, {}, 2.7, 3.3, "step").answer == "not testable here"


def test_counts_of_a_perceptron_are_those_of_its_products() -> None:
    """64-300-100-10 with norms: 2·50,200 FLOPs forward, and backward twice that but for the gradient of the input."""
    size = STUDIES["subnetworks-cost"].sizes["smoke"]
    methods = cost._METHODS | {"one": "partial:rate=0.01"}
    metrics = {
        name: STUDIES["subnetworks-cost"].run(Job(name, methods[name], "digits", 0), size, None)["metrics"]
        for name in ("deterministic", "ensemble", "dropout", "vi", "vi by local reparameterization", OURS, "one")
    }
    products, weights = 64 * 300 + 300 * 100 + 100 * 10, 51_410
    assert metrics["deterministic"]["flops of a plain step"] == pytest.approx(3 - 64 * 300 / products)
    steps = {name: row[STEP] for name, row in metrics.items()}
    assert steps == {
        "deterministic": 1, "ensemble": 5, "dropout": 1, "vi": 5, "vi by local reparameterization": 10, OURS: 5,
        "one": 1,
    }  # fmt: skip
    trainings = {name: row[TRAINING] for name, row in metrics.items()}
    assert trainings == steps | {OURS: 6, "one": 2}
    assert metrics[OURS][f"{TRAINING} by formula"] == pytest.approx(1 + 1.01 * 7 / 3)  # the 3.36 of Abboud et al. 2024
    assert metrics["vi"][f"{STEP} by formula"] == pytest.approx(14 / 3)
    assert "parameters by formula" not in metrics["dropout"]
    assert metrics[OURS]["parameters"] == pytest.approx(1.01, abs=1 / weights)
    assert (metrics["vi"]["parameters"], metrics["ensemble"]["parameters"]) == (2, 5)
    assert metrics["ensemble"]["memory"] == 5
    assert 1.01 < metrics[OURS]["memory"] < 1.03
    assert metrics[OURS]["sensitivity"] == pytest.approx(1 / (50 * 6))
    assert metrics["dropout"]["flops of prediction"] == metrics["vi"]["flops of prediction"] == 5
    assert 1 <= metrics[OURS]["flops of prediction"] <= 5
