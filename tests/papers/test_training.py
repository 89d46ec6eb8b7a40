"""Training and measuring: examples are the same every time, and so are the numbers."""

import pytest
import torch

from leanbayes.lab.recipes import Budget, parse
from leanbayes.prediction import predict
from leanbayes_papers import Job
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


def test_draws_in_turn_are_the_predictors_own() -> None:
    task = tasks.classes()
    x, _ = task.test[:]
    for spec in ("vi", "ensemble:members=2", "dropout", "deterministic", "vi:predict=moments"):
        net = train(Job("a", spec, "x", 0), stub.size(budget=Budget(epochs=2, batch_size=60)), task)[0].predictor
        fast, in_turn = (
            predict(model, x, samples=6, method="loop", generator=torch.Generator().manual_seed(1))
            for model in (net, repeatable(net))
        )
        torch.testing.assert_close(in_turn.mean, fast.mean)
        torch.testing.assert_close(in_turn.total, fast.total)


def test_what_is_measured_repeats_bit_for_bit() -> None:
    size, task = stub.size(budget=Budget(epochs=2, batch_size=30), samples=12), tasks.classes()
    for spec in ("partial:rate=0.2", "ensemble:members=2"):
        job = Job("a", spec, "x", 3)
        first, again = (
            train_and_measure(job, size, task, shifted={"far": task.shifted["far"]})[0]["metrics"] for _ in range(2)
        )
        assert first == again
        assert {"accuracy", "ood/far/auroc", "nll@far", "random", "flops"} <= first.keys()


def test_relative_flops_are_what_subnetworks_cost_counts() -> None:
    """Before, they were the formulas of table 1, whose verdict contradicted that of the counted FLOPs."""
    assert relative_flops(parse("deterministic")) == 1
    assert relative_flops(parse("ensemble")) == 5
    assert relative_flops(parse("partial:rate=0.01,draws=5")) == pytest.approx(0.5 + 0.5 * 5)
    assert relative_flops(parse("partial:rate=0.01")) == 1
    assert relative_flops(parse("vi:pretrain=0,draws=5")) == 5
    assert relative_flops(parse("dropout")) is None
