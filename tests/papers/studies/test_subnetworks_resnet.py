"""The small ResNet: verdicts, and the distances of weights."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from leanbayes.baselines import Ensemble
from leanbayes.lab.recipes import parse
from leanbayes_papers import STUDIES, Claim
from leanbayes_papers.studies import subnetworks_resnet as resnet
from tests.papers.made_up import made_up

OURS, FIVE, OOD = "partial 1 %", "partial 5 %", "ood/unseen/auroc"


@pytest.mark.parametrize(
    ("claim", "good", "bad"),
    [
        (resnet.CIFAR, {("nll", "ensemble"): 0.49}, {("nll", "ensemble"): 0.4}),
        (resnet.SVHN, {}, {(OOD, "ensemble"): 0.6}),
        (resnet.LOW, {("accuracy", "partial 20 %"): 0.4}, {("accuracy", "partial 20 %"): 0.6}),
        (
            resnet.FASTER,
            {("nll", FIVE): 0.4, ("accuracy", FIVE): 0.6},
            {("nll", FIVE): 0.4, ("accuracy", FIVE): 0.6, ("nll", "vi from random weights"): 0.3},
        ),
        (resnet.CHEAPER, {("nll", FIVE): 0.4}, {("nll", FIVE): 0.6}),
        (resnet.ENDS, {("random@middle", OURS): 0.1}, {("random@output", OURS): 0.9}),
        (resnet.NARROWER, {("deviation of 1 %", "ensemble"): 0.6}, {}),
        (resnet.SIMILAR, {("distance of 1 %", "ensemble"): 0.51}, {("distance of 1 %", "ensemble"): 0.53}),
    ],
)
@pytest.mark.usefixtures("verdicts_only")
def test_verdicts_follow_the_numbers(claim: Claim, good: Any, bad: Any) -> None:
    assert made_up("subnetworks-resnet", "cpu", good)[claim.text] == "holds"
    assert made_up("subnetworks-resnet", "cpu", bad)[claim.text] == "does not hold"


@pytest.fixture
def verdicts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resnet, "lines", lambda *arguments, **options: None)
    monkeypatch.setattr(resnet, "summary", lambda *arguments, **options: None)


def test_distances_of_weights_are_those_of_their_laws() -> None:
    """Members that share a law are near; weights twice as wide are 0.1615 away: max of Φ(x) − Φ(x/2)."""
    torch.manual_seed(0)
    members = [torch.nn.Linear(100, 100) for _ in range(5)]
    for member in members:
        torch.nn.init.normal_(member.weight)
        torch.nn.init.normal_(member.bias)
    wide = torch.nn.Linear(100, 100)
    torch.nn.init.normal_(wide.weight, std=2)
    torch.nn.init.normal_(wide.bias, std=2)
    distances = resnet._weights(Ensemble(*members), wide, most=20_000, seed=0)
    assert distances["distance of a member"] < 0.03
    assert distances["distance of 1 %"] == pytest.approx(0.1615, abs=0.02)
    assert distances["deviation of 1 %"] == pytest.approx(2, rel=0.03)
    assert distances["deviation of the ensemble"] == pytest.approx(1, rel=0.02)


def test_random_starts_are_on_the_first_data_only_and_have_the_bayesian_epochs_of_the_others() -> None:
    size = STUDIES["subnetworks-resnet"].sizes["cpu"]
    jobs = STUDIES["subnetworks-resnet"].jobs(size, [0])
    cold = {job.method: (job.data, job.epochs) for job in jobs if "from random" in job.method}
    half = size.budget.epochs // 2
    assert cold == {
        "5 % from random weights": ("cifar10", half),
        "5 % from random weights, twice the steps": ("cifar10", None),
        "vi from random weights": ("cifar10", half),
    }
    assert len(jobs) == 2 * len(size.methods) + 3
    for sized in STUDIES["subnetworks-resnet"].sizes.values():
        specs = {job.method: job.spec for job in STUDIES["subnetworks-resnet"].jobs(sized, [0])}
        five, cold = (parse(specs[name]) for name in (FIVE, "5 % from random weights"))
        assert cold == replace(five, pretrain=0.0)  # type: ignore[type-var]
        assert parse(specs["vi from random weights"]).pretrain == 0  # type: ignore[attr-defined]


def test_a_random_start_keeps_the_curve_of_its_bayesian_stage_alone() -> None:
    study = STUDIES["subnetworks-resnet"]
    size = study.sizes["smoke"]
    for job in study.jobs(size, [0]):
        if job.method in (FIVE, "5 % from random weights", "5 % from random weights, twice the steps"):
            result = study.run(job, size, None)
            assert len(result["curve"]) == (2 if "twice" in job.method else 1)
            assert result["metrics"]["random"] == pytest.approx(
                0.05 * (result["metrics"]["parameters"]) / 1.05, rel=0.01
            )
            assert ("flops" in result["metrics"]) == (job.epochs is None)
