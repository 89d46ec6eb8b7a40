"""Averaged weights are the mean of those that training had, with batch-norm statistics of their own."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from leanbayes.errors import InputError
from leanbayes.lab.recipes import Run, parse, prepare
from leanbayes.lab.recipes import run as run_module
from leanbayes.lab.recipes import swa as swa_module
from tests import tasks
from tests.lab.recipes.cases import BUDGET


class Watched:
    """Stands in for `fit`, and notes the weights at the start of each stage and after each epoch, and the rates."""

    def __init__(self) -> None:
        self.fit = run_module.fit
        self.weights: list[dict[str, torch.Tensor]] = []
        self.options: list[dict[str, Any]] = []

    def __call__(self, model: nn.Module, batches: Any, *, callbacks: Any, **options: Any) -> Any:
        inner = model.model if isinstance(model, swa_module._Averaging) else model
        self.options.append(options)

        def note(epoch: object = None) -> None:
            self.weights.append({name: value.detach().double().clone() for name, value in inner.named_parameters()})

        self.weights = []
        note()
        return self.fit(model, batches, callbacks=[note, *callbacks], **options)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    watched = Watched()
    monkeypatch.setattr(run_module, "fit", watched)
    return watched


@pytest.mark.parametrize(
    ("spec", "counted"),
    [
        ("swa", [0, 1, 2]),  # two of eight epochs, and the weights at their start
        ("swa:pretrain=0.25", [0, 1, 2, 3, 4, 5, 6]),
        ("swa:pretrain=0.5,cycle=2", [0, 2, 4]),
        ("swa:pretrain=0.25,cycle=4,schedule=cyclical", [0, 4]),  # the cycle that does not end does not count
    ],
)
def test_the_weights_are_the_mean_of_those_of_the_last_epochs(spec: str, counted: list[int], watched: Watched) -> None:
    task, budget = tasks.pictures(), replace(BUDGET, weight_decay=0.1, optimizer="adamw")
    predictor = prepare(parse(spec), task, Run(budget)).predictor
    for name, value in predictor.named_parameters():
        assert value.requires_grad
        mean = sum(watched.weights[i][name] for i in counted) / len(counted)
        torch.testing.assert_close(value.double(), mean, rtol=1e-6, atol=1e-7)
    assert any(not torch.equal(watched.weights[0][name], watched.weights[-1][name]) for name in watched.weights[0])


def test_the_statistics_of_batch_norm_are_those_of_the_mean_weights() -> None:
    task = tasks.pictures()
    model = prepare(parse("swa"), task, Run(BUDGET)).predictor
    before_norm = [model[0](x).double().transpose(0, 1).flatten(1) for x, _ in Run(BUDGET).loader(task.train)]
    means, variances = (torch.stack([of(batch, 1) for batch in before_norm]).mean(0) for of in (torch.mean, torch.var))
    torch.testing.assert_close(model[1].running_mean.double(), means, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model[1].running_var.double(), variances, rtol=1e-5, atol=1e-6)
    assert model[1].momentum == 0.1
    assert not model.training


def test_rates_are_constant_or_fall_in_each_cycle(watched: Watched) -> None:
    task = tasks.classes()  # four batches an epoch
    prepare(parse("swa"), task, Run(BUDGET))
    how = watched.options[-1]["optimizer"]
    assert (how.lr, how.schedule, watched.options[-1]["validate"]) == (BUDGET.lr, "constant", None)
    prepare(parse("swa:pretrain=0.5,cycle=2,schedule=cyclical,lr=0.1"), task, Run(BUDGET))
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    schedule = watched.options[-1]["optimizer"].schedule(optimizer, 16)
    rates = []
    for _ in range(16):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    cycle = [0.1 * (1 - t / 8) + 0.001 * t / 8 for t in range(1, 9)]  # section 3.2 of Izmailov et al. 2018
    assert rates == pytest.approx(cycle * 2)


def test_the_schedule_of_the_budget_is_cut_off_and_not_compressed(watched: Watched, tmp_path: Path) -> None:
    """After three quarters of a cosine the rate is 15 % of the first one, and not 0."""
    task, budget = tasks.classes(), replace(BUDGET, schedule="cosine")
    prepare(parse("swa"), task, Run(budget, folder=tmp_path))
    plain, averaging = watched.options
    assert (plain["epochs"], averaging["epochs"], averaging["optimizer"].schedule) == (6, 2, "constant")
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = plain["optimizer"].schedule(optimizer, 24)  # six epochs of four batches
    for _ in range(24):
        optimizer.step()
        schedule.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx((1 + math.cos(0.75 * math.pi)) / 2)
    whole = prepare(parse("swa"), task, Run(budget)).predictor.state_dict()
    again = prepare(parse("swa"), task, Run(budget, folder=tmp_path)).predictor.state_dict()  # from checkpoints
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_frozen_weights_stay_and_dropout_takes_no_global_noise() -> None:
    def model() -> nn.Module:
        net = nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 3))
        net[0].requires_grad_(False)
        return net

    task = replace(tasks.classes(), model=model)
    states = []
    for _ in range(2):
        torch.manual_seed(5)
        before = torch.get_rng_state()
        predictor = prepare(parse("swa"), task, Run(BUDGET)).predictor
        assert torch.equal(torch.get_rng_state(), before)
        torch.rand(7)  # another global state before the second training
        states.append(predictor.state_dict())
    assert [p.requires_grad for p in predictor.parameters()] == [False] * 2 + [True] * 4
    assert torch.equal(states[0]["0.weight"], Run(BUDGET).new_model(task)[0].weight)
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_what_cannot_be_averaged_is_refused_before_training(tmp_path: Path) -> None:
    def never(*_: object) -> None:
        raise AssertionError("training has begun")

    run = Run(BUDGET, folder=tmp_path, watch=never)
    with pytest.raises(InputError, match=r"the last 2 epochs of 8, and cycle=3 is longer"):
        prepare(parse("swa:cycle=3"), tasks.classes(), run)
    with pytest.raises(InputError, match="at least 2 epochs"):
        prepare(parse("swa"), tasks.classes(), replace(run, budget=replace(BUDGET, epochs=1)))
    for spec in ("swa:pretrain=1", "swa:lr=0", "swa:cycle=0", "swa:lr=-1"):
        with pytest.raises(InputError, match="must lie in"):
            parse(spec)
