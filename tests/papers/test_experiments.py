"""Every experiment: its smoke size runs, and its verdicts follow the numbers at the larger sizes."""

import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from leanbayes.bayesian import Bayesian
from leanbayes.lab.data import load_data
from leanbayes.lab.recipes import Budget, Run, parse
from leanbayes.prediction import predict
from leanbayes_papers import STUDIES, Claim, Job, Results, reproduce
from leanbayes_papers.studies import abboud_lidc as lidc
from leanbayes_papers.studies import selection, uci
from leanbayes_papers.studies import subnetworks_mnist_rates as mnist
from leanbayes_papers.training import (
    as_tensors,
    digit_images,
    relative_flops,
    repeatable,
    small_task,
    train,
    train_and_measure,
)
from tests import tasks
from tests.papers import stub


@pytest.mark.parametrize("name", STUDIES)
def test_smoke(name: str, tmp_path: Path) -> None:
    experiment = STUDIES[name]
    record = reproduce(experiment, "smoke", folder=tmp_path / "none", out=tmp_path, cache=tmp_path / "cache")
    assert record["error"] is None
    assert record["failed"] == []
    assert record["tables"]
    assert all(len(table) == len({job["method"] for job in record["jobs"]}) for table in record["tables"].values())
    assert len(record["verdicts"]) == len(experiment.claims)
    for file in record["figures"].values():
        assert (tmp_path / file).stat().st_size > 1000


class Metrics(dict):
    """Any measure: the same number for each method, with a little noise of its own, unless it is given."""

    def __init__(self, job: Job, given: dict[tuple[str, str], float]) -> None:
        super().__init__()
        self.job, self.given = job, given

    def __contains__(self, name: object) -> bool:
        return True

    def __getitem__(self, name: str) -> float:
        noise = np.random.default_rng([zlib.crc32(f"{self.job} {name}".encode())]).normal()
        return self.given.get((name, self.job.method), 0.5) + 1e-6 * noise


def made_up(name: str, size: str, given: dict[tuple[str, str], float] | None = None) -> dict[str, str]:
    """The answers to all claims, by their words, if the jobs had found these numbers."""
    experiment = STUDIES[name]
    chosen = experiment.sizes[size]
    picture = np.eye(4).tolist()
    other = {
        "mean": [0.0] * 61, "deviation": [1.0] * 61, "pixels": picture, "curve": [2.0, 1.0], "raters": [picture] * 2,
        "entropy": [picture] * 2,
    }  # fmt: skip
    jobs = experiment.jobs(chosen, range(3))
    outcome = experiment.conclude(Results([(j, {"metrics": Metrics(j, given or {}), **other}) for j in jobs]), chosen)
    assert [verdict.claim for verdict in outcome.verdicts] == list(experiment.claims)
    assert outcome.tables
    return {verdict.claim.text: verdict.answer for verdict in outcome.verdicts}


@pytest.mark.parametrize("size", ["cpu", "paper"])
@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.usefixtures("verdicts_only")
def test_where_all_methods_are_alike_matches_hold_and_gains_do_not(name: str, size: str) -> None:
    answers = set(made_up(name, size).values())
    assert answers <= {"holds", "does not hold"}  # each finds its methods and measures, and so little noise is told


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
    found = made_up("abboud-lidc", "cpu", telling | {("iou/1", blind): 0.05})
    assert {text for text, answer in found.items() if answer == "not testable here"} == {c.text for c in silent}


@pytest.fixture
def verdicts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures and tables take most of the time, and change no verdict."""
    for experiment in STUDIES.values():
        module = sys.modules[experiment.conclude.__module__]
        for name in {"lines", "by_rate", "bands", "maps", "summary"} & vars(module).keys():
            monkeypatch.setattr(module, name, lambda *arguments, **options: None)


CASES: list[tuple[str, Any, dict[tuple[str, str], float], dict[tuple[str, str], float]]] = [
    ("subnetworks-mnist-rates", mnist.DECLINE, {("brier", "partial 1 %"): 0.1}, {("brier", "partial 95 %"): 0.1}),
    (
        "subnetworks-mnist-rates",
        mnist.ROTATED,
        {("accuracy@rotated", "ensemble"): 0.9},
        {("accuracy@rotated", "vi"): 0.9},
    ),
    ("subnetworks-mnist-rates", mnist.FOURFOLD, {("sigma", "vi"): 2.0}, {("sigma", "vi"): 9.0}),
    ("subnetworks-mnist-rates", mnist.MATCHES, {("flops", "ensemble"): 5.0}, {("ece", "ensemble"): 0.1}),
    ("subnetworks-mnist-rates", mnist.CENTRAL, {("central", "partial 5 %"): 0.9}, {("central", "partial 5 %"): 0.4}),
    (
        "subnetworks-mnist-rates",
        mnist.ON_PAR,
        {("ood/unseen/auroc", "ensemble"): 0.9, ("ood/unseen/auroc", "partial 10 %"): 0.895},
        {("ood/unseen/auroc", "ensemble"): 0.9},
    ),
    ("selection", selection.RANDOM, {("nll", f"{r} % by sensitivity"): 0.1 for r in (1, 5, 20)}, {}),
    ("selection", selection.CHEAPER, {("nll", "5 % by sensitivity"): 0.1}, {("nll", "5 % by sensitivity"): 0.9}),
    ("uci", uci.PARTIAL, {("nll", "ensemble"): 0.51}, {("rmse", "ensemble"): 0.3}),
    ("uci", uci.ONE_PASS, {("nll", "vi by moments"): 0.1}, {("nll", "vi by moments"): 0.9}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "claim", "good", "bad"), CASES)
@pytest.mark.usefixtures("verdicts_only")
def test_verdicts_follow_the_numbers(name: str, claim: Any, good: Any, bad: Any) -> None:
    assert made_up(name, "cpu", good)[claim.text] == "holds"
    assert made_up(name, "cpu", bad)[claim.text] == "does not hold"


@pytest.mark.parametrize(
    ("name", "words", "good", "bad"),
    [
        ("abboud-breast", "particularly in entropy", {("entropy", "partial 1 %"): 0.1}, {("entropy", "ensemble"): 0.1}),
        ("abboud-breast", "30% fewer", {("flops", "ensemble"): 5.0}, {("flops", "ensemble"): 0.1}),
        ("abboud-breast", "below 1 %", {}, {("nll", "partial 1 %"): 0.1}),
        (
            "abboud-lidc",
            "0.80 against 0.67",
            {("dice", "vi from random weights"): 0.4},
            {("dice", "vi from random weights"): 0.6},
        ),
        (
            "abboud-lidc",
            "correlates",
            {("rater agreement", "partial 1 %"): 0.6},
            {("rater agreement", "partial 1 %"): 0.0},
        ),
        (
            "subnetworks-shifts",
            "loses less",
            {("lost accuracy", "partial 5 %"): 0.1},
            {("lost accuracy", "dropout"): 0.1},
        ),
        ("subnetworks-shifts", "higher on corrupted", {("entropy@severity 5", "partial 5 %"): 0.9}, {}),
        ("subnetworks-toy", "cover the truth more", {("covered@outside", "deterministic"): 0.1}, {}),
        ("subnetworks-toy", "larger outside", {("epistemic deviation@outside", "partial 40 %"): 5.0}, {}),
    ],
)
@pytest.mark.usefixtures("verdicts_only")
def test_verdicts_of_the_others(name: str, words: str, good: Any, bad: Any) -> None:
    def answer(given: Any) -> str:
        (found,) = [answer for text, answer in made_up(name, "cpu", given).items() if words in text]
        return found

    assert (answer(good), answer(bad)) == ("holds", "does not hold")


def test_weights_are_chosen_by_sensitivity_size_or_chance_and_are_equally_many() -> None:
    task = tasks.classes()
    run = Run(Budget(epochs=2, batch_size=30), seed=1)
    model = run.plain(task, 2)
    chosen = {}
    for way in ("sensitivity", "magnitude", "random"):
        recipe = selection.Selected(rate=0.2, by=way)
        weights = Bayesian(model, subspace=recipe.subspace(model, task, run)).weights()
        chosen[way] = {(name, int(place)) for name, weight in weights.items() for place in weight.positions}
    assert len({len(some) for some in chosen.values()}) == 1
    assert len({frozenset(some) for some in chosen.values()}) == 3
    sizes = sorted(((v.item(), n, i) for n, p in model.named_parameters() for i, v in enumerate(p.abs().flatten())))
    assert chosen["magnitude"] == {(name, place) for _, name, place in sizes[-len(chosen["magnitude"]) :]}
    with pytest.raises(ValueError, match="colour"):
        selection.Selected(by="colour")


def test_a_random_start_has_the_weights_that_the_trained_network_chooses() -> None:
    task, size = tasks.classes(), stub.size(budget=Budget(epochs=4, batch_size=30))

    def places(pretrain: float, epochs: int) -> set[tuple[str, int]]:
        job = Job("a", "partial", "x", 1, epochs=epochs)
        net = train(job, size, task, selection.Selected(rate=0.1, pretrain=pretrain))[0].predictor
        assert isinstance(net, Bayesian)
        return {(name, int(place)) for name, weight in net.weights().items() for place in weight.positions}

    assert places(0.5, 4) == places(0.0, 2)


def test_uci_is_in_the_units_of_the_table() -> None:
    """A plain network's RMSE and NLL, computed anew from the raw table's scale."""
    size = STUDIES["uci"].sizes["smoke"]
    found = STUDIES["uci"].run(Job("deterministic", "deterministic", "made-up", 0), size, None)["metrics"]
    source = uci._source("made-up", None, 0)
    scale = source.preparation.target_std[0]
    assert found["rmse in units"] == pytest.approx(found["rmse"] * scale)
    assert found["nll in units"] == pytest.approx(found["nll"] + np.log(scale))
    assert len(STUDIES["uci"].jobs(STUDIES["uci"].sizes["paper"], range(20))) == 15 * (8 * 20 + 5)


def test_central_counts_the_pixels_of_random_weights() -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
    scores = {"1.weight": torch.zeros(3, 8, 8), "1.bias": torch.zeros(3)}
    scores["1.weight"][:, 2:6, 2:6] = 1.0
    scores["1.weight"][0, 0, :4] = 2.0
    from leanbayes.subspace import top_k

    bnn = Bayesian(
        model, subspace=top_k({n: s.reshape(3, -1) if n == "1.weight" else s for n, s in scores.items()}, k=16)
    )
    metrics: dict[str, float] = {}
    pixels = mnist._first_layer(bnn, metrics)["pixels"]
    assert metrics["central"] == pytest.approx(12 / 16)
    assert metrics["central by area"] == 0.25
    assert np.asarray(pixels).shape == (8, 8)
    assert np.asarray(pixels)[7].max() == 0
    sigma = bnn.weights()["1.weight"].variance().sqrt()
    assert metrics["sigma"] == pytest.approx(sigma[sigma > 0].mean().item())


def test_draws_in_turn_are_the_predictors_own() -> None:
    task = tasks.classes()
    x, _ = task.test[:]
    for spec in ("vi", "ensemble:members=2", "dropout", "deterministic", "vi:predict=moments"):
        net = train(Job("a", spec, "x", 0), stub.size(budget=Budget(epochs=2, batch_size=60)), task)[0].predictor
        own, turn = (
            predict(model, x, samples=6, method="loop", generator=torch.Generator().manual_seed(1))
            for model in (net, repeatable(net))
        )
        torch.testing.assert_close(turn.mean, own.mean)
        torch.testing.assert_close(turn.total, own.total)


def test_what_is_measured_repeats_bit_for_bit() -> None:
    size, task = stub.size(budget=Budget(epochs=2, batch_size=30), samples=12), tasks.classes()
    for spec in ("partial:rate=0.2", "ensemble:members=2"):
        job = Job("a", spec, "x", 3)
        first, again = (
            train_and_measure(job, size, task, shifted={"far": task.shifted["far"]})[0]["metrics"] for _ in range(2)
        )
        assert first == again
        assert {"accuracy", "ood/far/auroc", "nll@far", "random", "flops"} <= first.keys()


def test_relative_flops_are_those_of_table_1() -> None:
    assert relative_flops(parse("deterministic")) == 1
    assert relative_flops(parse("ensemble")) == 5
    # Abboud et al. 2024, table 1: stages of equal length cost 1 + 1.01 · 7/3 = 3.36 plain trainings of that length
    assert 2 * relative_flops(parse("partial:rate=0.01,draws=5")) == pytest.approx(3.36, abs=0.005)
    assert relative_flops(parse("vi:pretrain=0,draws=5")) == pytest.approx(14 / 3)
    assert relative_flops(parse("dropout")) is None


def test_some_examples_are_the_same_every_time_and_standardised() -> None:
    source = digit_images()
    a, b = as_tensors(source.test, 30), as_tensors(source.test, 30)
    assert torch.equal(a.tensors[0], b.tensors[0])
    assert len(a) == 30
    whole = as_tensors(source.train).tensors[0]
    assert abs(whole.mean().item()) < 1e-4
    assert whole.std().item() == pytest.approx(1, abs=1e-3)
    first = next(i for i in range(len(source.test)) if torch.equal(source.test[i][0], a.tensors[0][0]))
    assert source.test[first][1] == a.tensors[1][0]
    task = small_task(source, (20, 10, None), "lenet300")
    assert [len(task.train), len(task.validation)] == [20, 10]  # type: ignore[arg-type]
    assert task.model()[1].out_features == 300  # type: ignore[index]


def test_toy_metrics_of_a_network_that_knows_the_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the truth and a deviation of 3 everywhere, errors are 0, all is covered, and nothing is epistemic."""
    from leanbayes_papers.studies import subnetworks_toy as toy

    source = load_data("cubic", seed=0)
    plan = source.preparation

    class Truth(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = (x * plan.std[0] + plan.mean[0]) ** 3
            scale = plan.target_std[0]
            return torch.cat([(y - plan.target_mean[0]) / scale, torch.full_like(y, 2 * float(np.log(3 / scale)))], 1)

    def trained(job: Job, size: Any, task: Any) -> Any:
        return replace(train(job, size, task)[0], predictor=Truth()), None

    monkeypatch.setattr(toy, "train", trained)
    size = STUDIES["subnetworks-toy"].sizes["smoke"]
    found = toy._run(Job("a", "deterministic", "cubic", 0, epochs=1), size, None)
    metrics = found["metrics"]
    for where in ("inside", "outside"):
        assert metrics[f"rmse@{where}"] == pytest.approx(0, abs=1e-3)
        assert metrics[f"deviation@{where}"] == pytest.approx(3, rel=1e-4)
        assert metrics[f"covered@{where}"] == 1
        assert metrics[f"epistemic deviation@{where}"] == 0
    assert found["mean"][0] == pytest.approx(-216, abs=1e-2)
