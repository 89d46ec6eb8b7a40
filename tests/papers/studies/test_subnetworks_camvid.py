"""Segmentation of street scenes: verdicts, and what is measured by place against numpy."""

from typing import Any

import numpy as np
import pytest
import torch

from leanbayes.bayesian import Bayesian
from leanbayes.lab.models import unet
from leanbayes.lab.recipes import Budget
from leanbayes.subspace import everything, layers, top_k
from leanbayes_papers import STUDIES, Claim, Job, Results
from leanbayes_papers import segmentation as seg
from leanbayes_papers.placement import by_depth, random_by_part
from leanbayes_papers.studies import subnetworks_camvid as camvid
from leanbayes_papers.training import train
from leanbayes_papers.verdicts import exceeds, ratios
from tests.papers import stub
from tests.papers.test_experiments import made_up

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


@pytest.fixture
def verdicts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(camvid, "lines", lambda *arguments, **options: None)
    monkeypatch.setattr(camvid, "summary", lambda *arguments, **options: None)


def edges_by_loops(masks: np.ndarray, counted: np.ndarray) -> np.ndarray:
    found = np.zeros(masks.shape, dtype=bool)
    for n, row, column in np.ndindex(masks.shape):
        window = (n, slice(max(row - 1, 0), row + 2), slice(max(column - 1, 0), column + 2))
        others = masks[window][counted[window]]
        found[n, row, column] = counted[n, row, column] and (others != masks[n, row, column]).any()
    return found


def test_edges_are_where_a_neighbour_that_counts_has_another_class() -> None:
    random = np.random.default_rng(0)
    masks, counted = random.integers(0, 3, (4, 7, 9)), random.random((4, 7, 9)) > 0.4
    masks[0], counted[1], counted[2] = 2, False, True
    found = seg.at_edges(torch.tensor(masks), torch.tensor(counted))
    assert np.array_equal(found, edges_by_loops(masks, counted))
    assert not found[0].any()
    assert not found[1].any()
    assert found.any()


def test_entropies_by_place_are_those_of_the_softmax_and_void_does_not_count() -> None:
    task = seg.segmentation_task(seg.scenes(3), (None, None, None), width=2, depth=1)
    size, job = stub.size(budget=Budget(epochs=2, batch_size=10, lr=1e-2), samples=4), Job("a", "deterministic", "x", 0)
    result, trained, predicted = seg.train_and_segment(job, size, task)
    images, truth = (np.asarray(part) for part in task.test[:])
    with torch.no_grad():
        logits = np.asarray(trained.predictor(torch.tensor(images))).astype(np.float64)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    entropy, counted, right = -(p * np.log(p)).sum(1), truth != 3, p.argmax(1) == truth
    edges = edges_by_loops(truth, counted)
    assert not counted[:, :, 0].any()
    assert counted[:, :, 1:].all()
    for name, where in {"edges": edges, "inside": ~edges, "wrong": ~right, "right": right}.items():
        assert result["metrics"][f"entropy@{name}"] == pytest.approx(entropy[where & counted].mean(), rel=1e-5)
    assert right[counted].mean() == pytest.approx(result["metrics"]["accuracy"])
    assert np.array_equal(predicted.chosen, p.argmax(1))
    assert np.array_equal(result["truth"], truth[:2])
    np.testing.assert_allclose(result["doubt"], entropy[:2], rtol=1e-4, atol=1e-6)


def test_variational_networks_start_from_what_the_plain_one_ends_as() -> None:
    size = STUDIES["subnetworks-camvid"].sizes["cpu"]
    epochs = {job.method: job.epochs for job in STUDIES["subnetworks-camvid"].jobs(size, [0])}
    twice = 2 * size.budget.epochs
    assert epochs == {
        "deterministic": None,
        seg.LONGER: twice,
        "ensemble": None,
        "vi": twice,
        FULL: twice,
        OURS: twice,
        "partial 5 %": twice,
    }
    task, small = seg.segmentation_task(seg.scenes(2), (20, 5, 5), 2, 1), stub.size(budget=Budget(epochs=1))
    started = train(Job("a", "vi", "x", 3, epochs=2), small, task)[1]
    assert [stage for stage, _ in started.curve] == ["plain", "vi"]
    alone = train(Job("a", "deterministic", "x", 3), small, task)[1]
    assert started.curve[0] == alone.curve[0]


def test_flops_are_of_all_epochs() -> None:
    task = seg.segmentation_task(seg.scenes(2), (10, 5, 5), 2, 1)
    size = stub.size(budget=Budget(epochs=2, batch_size=5))
    once, twice = (
        seg.train_and_segment(Job("a", "partial", "x", 0, epochs=epochs), size, task)[0]["metrics"]["flops"]
        for epochs in (None, 4)
    )
    assert twice == 2 * once


def test_random_weights_are_counted_by_part_from_the_input_on() -> None:
    net = unet(1, 2, width=2, depth=1)  # down.0, down.1, up.0, head
    found = random_by_part(Bayesian(net, subspace=layers("down.0.*", "head")), 1, 2)
    count = {name: sum(p.numel() for p in getattr(net, name).parameters()) for name in ("down", "up", "head")}
    assert [found[f"random@part {number}"] for number in (1, 2, 3, 4)] == [1, 0, 0, 1]
    assert (found["random@input"], found["random@middle"]) == (1, 0)
    assert found["random@output"] == pytest.approx(count["head"] / (count["up"] + count["head"]))
    assert random_by_part(Bayesian(net, subspace=everything()), 1, 2) == {}
    assert random_by_part(net, 1, 2) == {}
    scores = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    scores["up.0.0.weight"].view(-1)[:7] = 1
    some = random_by_part(Bayesian(net, subspace=top_k(scores, k=7)), 1, 2)
    assert some["random@part 3"] == pytest.approx(7 / count["up"])
    drawn = by_depth(Results([(Job("a", "vi", "x", 0), {"metrics": some | {"nll": 1.0}})]))
    assert drawn == {"a": {1.0: [1.0], 2.0: [1.0], 3.0: [1 - 7 / count["up"]], 4.0: [1.0]}}


def test_measures_of_one_run_are_compared_in_pairs() -> None:
    claim = Claim("ours", "here", "a measure is above another")
    rows = [(Job("a", "vi", "x", seed), {"metrics": {"p": 1.0 + seed, "q": 0.5 + 1.01 * seed}}) for seed in range(4)]
    results = Results([*rows, (Job("b", "vi", "x", 0), {"metrics": {"p": 0.0, "q": 9.0}})])
    assert exceeds(results, claim, "a", "p", "q", margin=0.1).answer == "holds"
    assert exceeds(results, claim, "a", "q", "p", margin=0.1).answer == "does not hold"
    assert exceeds(results, claim, "a", "q", "none", margin=0.1).answer == "not testable here"
    assert ratios(results, "p", "b", "a") == [0.0]
    assert ratios(results, "p", "a", "b") == []
