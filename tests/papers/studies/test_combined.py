from typing import Any

import pytest

from leanbayes.bayesian import Bayesian
from leanbayes.lab.recipes import Budget, prepare
from leanbayes.lab.recipes.partial import Partial
from leanbayes.posteriors import Radial
from leanbayes.subspace import scatters
from leanbayes_papers import STUDIES, Job
from leanbayes_papers.studies import combined
from leanbayes_papers.studies.combined import RadialPartial, SparsePartial
from leanbayes_papers.training import Recorded
from tests import tasks
from tests.papers.made_up import made_up

ONE, TEN, SPARSE, RADIAL = "partial 1 %", "partial 10 %", "partial 10 % of rigl", "radial partial 1 %"


@pytest.fixture
def no_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take most of the time, and change no verdict."""
    monkeypatch.setattr(combined, "summary", lambda *arguments: [])


CASES: list[tuple[Any, dict[tuple[str, str], float], dict[tuple[str, str], float]]] = [
    (combined.ONE_PASS_1, {("nll@moments", ONE): 0.51}, {("nll@moments", ONE): 0.6}),
    (combined.ONE_PASS_1, {("nll", TEN): 0.1}, {("nll", ONE): 0.4}),
    (combined.ONE_PASS_10, {("nll@moments", ONE): 0.9}, {("ood/unseen/auroc@32 draws", TEN): 0.6}),
    (combined.SPARSE_ALL, {("nll", SPARSE): 0.1}, {("nll", "ssvi"): 0.1}),
    (combined.SPARSE_DENSE, {("nll", TEN): 0.49}, {("ood/unseen/auroc", TEN): 0.6}),
    (combined.SPARSE_PLAIN, {("nll", "rigl"): 0.6}, {}),
    (combined.RADIAL_ALL, {("ece", "radial"): 0.6}, {("ece", RADIAL): 0.6}),
    (combined.RADIAL_NORMAL, {("nll", ONE): 0.485}, {("brier", ONE): 0.4}),
]


@pytest.mark.parametrize(("claim", "good", "bad"), CASES)
@pytest.mark.usefixtures("no_tables")
def test_verdicts_follow_the_numbers(claim: Any, good: Any, bad: Any) -> None:
    assert made_up("combined", "cpu", good)[claim.text] == "holds"
    assert made_up("combined", "cpu", bad)[claim.text] == "does not hold"


def places(bnn: Bayesian) -> dict[str, list[int]]:
    return {name: weight.positions.tolist() for name, weight in bnn.weights().items()}


def test_radial_partial_has_the_weights_of_partial_and_radial_noise() -> None:
    task, budget = tasks.classes(), Budget(epochs=2, batch_size=30)
    normal, radial = (prepare(r(rate=0.1), task, Recorded(budget, 1)).predictor for r in (Partial, RadialPartial))
    assert isinstance(normal, Bayesian)
    assert isinstance(radial, Bayesian)
    assert places(radial) == places(normal)
    assert isinstance(radial.posterior, Radial)


def test_sparse_partial_is_a_part_of_what_is_stored_and_spends_the_budget() -> None:
    task, run = tasks.pictures(), Recorded(Budget(epochs=5, batch_size=30, lr=2e-2), 1)
    bnn = prepare(SparsePartial(rate=0.1, density=0.2), task, run).predictor
    assert isinstance(bnn, Bayesian)
    assert [stage for stage, _ in run.curve] == ["rigl"] * 2 + ["partial"] * 3
    assert run.seconds > 0
    (scatter,) = scatters(bnn.model).values()
    assert len(scatter.index) == round(0.2 * scatter.size)
    stored = sum(p.numel() for p in bnn.model.parameters())
    assert bnn.summary().random == round(0.1 * stored)
    assert int((bnn.densify().get_parameter("4.weight") != 0).sum()) <= len(scatter.index)


def test_partial_networks_are_judged_in_three_ways_with_the_same_weights() -> None:
    study = STUDIES["combined"]
    size = study.sizes["smoke"]
    metrics = study.run(Job(ONE, "partial:rate=0.1", "digits", 0), size, None)["metrics"]
    again = study.run(Job(ONE, "partial:rate=0.1", "digits", 0), size, None)["metrics"]
    assert metrics == again
    assert len({metrics[name] for name in ("nll", "nll@8 draws", "nll@moments")}) == 3
    assert metrics["nll@moments"] == pytest.approx(metrics["nll@8 draws"], rel=0.05)
    plain = study.run(Job("rigl", "rigl:density=0.2", "digits", 0), size, None)["metrics"]
    assert "nll@moments" not in plain
    assert plain["random"] == 0


def test_every_combination_has_its_recipe() -> None:
    study = STUDIES["combined"]
    size = study.sizes["cpu"]
    jobs = {job.method: job for job in study.jobs(size, [0])}
    assert combined._recipe(jobs[SPARSE], size) == SparsePartial(rate=0.1, density=0.2)
    assert combined._recipe(jobs[RADIAL], size) == RadialPartial(rate=0.01)
    assert len({str(job.key()) for job in jobs.values()}) == len(jobs) == 8
