"""Segmentation: edges, entropies by region against numpy, epochs, and pictures."""

from pathlib import Path

import numpy as np
import pytest
import torch

from leanbayes.lab.recipes import Budget
from leanbayes_papers import STUDIES, Job, Results
from leanbayes_papers import segmentation as seg
from leanbayes_papers.figures import save_figure
from leanbayes_papers.training import train
from tests.papers import stub

OURS, FULL = "partial 1 %", "vi from random weights"


def edges_by_loops(masks: np.ndarray, counted: np.ndarray) -> np.ndarray:
    edges = np.zeros(masks.shape, dtype=bool)
    for n, row, column in np.ndindex(masks.shape):
        window = (n, slice(max(row - 1, 0), row + 2), slice(max(column - 1, 0), column + 2))
        others = masks[window][counted[window]]
        edges[n, row, column] = counted[n, row, column] and (others != masks[n, row, column]).any()
    return edges


def test_edges_are_where_a_neighbour_that_counts_has_another_class() -> None:
    random = np.random.default_rng(0)
    masks, counted = random.integers(0, 3, (4, 7, 9)), random.random((4, 7, 9)) > 0.4
    masks[0], counted[1], counted[2] = 2, False, True
    edges = seg.at_edges(torch.tensor(masks), torch.tensor(counted))
    assert np.array_equal(edges, edges_by_loops(masks, counted))
    assert not edges[0].any()
    assert not edges[1].any()
    assert edges.any()


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


def test_overlays_tell_found_lesions_from_false_and_missed_ones(tmp_path: Path) -> None:
    truth, chosen = [[[0, 0], [1, 1]]], [[[0, 1], [0, 1]]]
    rows = {"a": {"truth": truth, "chosen": chosen, "doubt": [[[0.0, 0.1], [0.2, 0.6]]]}}
    figure = seg.pictures(rows, 2, against=True)
    shown = [axes.images[0] for axes in figure.axes]
    assert np.array_equal(shown[1].get_array(), [[0, 2], [3, 1]])
    assert shown[2].get_clim() == (0, pytest.approx(np.log(2)))
    plain = seg.pictures(rows, 2)
    assert np.array_equal(plain.axes[1].images[0].get_array(), chosen[0])
    save_figure(figure, tmp_path / "a.svg")
    assert (tmp_path / "a.svg").stat().st_size > 1000


def test_only_runs_with_pictures_are_shown() -> None:
    rows = [(Job("a", "vi", "x", 0), {"metrics": {}}), (Job("b", "vi", "x", 0), {"chosen": [], "doubt": []})]
    assert list(seg.results_with_pictures(Results(rows), ("a", "b", "c"))) == ["b"]
