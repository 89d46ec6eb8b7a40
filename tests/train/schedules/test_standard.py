"""Schedules by name: those of LeanBayes, and one from another package."""

import math
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes._catalogue import Catalogue
from leanbayes.train import SCHEDULES, NamedSchedule, schedules
from leanbayes.train.schedules import kl_schedule, rate_schedule

BATCHES = [(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))]


def test_the_schedules_of_leanbayes() -> None:
    assert list(SCHEDULES) == ["anneal", "constant", "cosine", "warm_up", "warmup_cosine"]
    for progress in (0.0, 0.3, 1.0):
        assert kl_schedule("anneal")(progress) == lb.anneal()(progress)
        assert kl_schedule("warm_up")(progress) == lb.warm_up()(progress)
        assert kl_schedule("constant")(progress) == 1.0
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    assert rate_schedule("constant")(optimizer, 10) is None
    scheduler = rate_schedule("cosine")(optimizer, 2)
    optimizer.step()
    scheduler.step()
    assert scheduler.get_last_lr() == pytest.approx([0.5])


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (2, 0), (3, 1), (20, 1), (100, 5)])
def test_warm_up_and_cosine_are_the_closed_form(steps: int, warmup: int) -> None:
    """(t + 1)/(W + 1) up to step W, then ½(1 + cos(π(t − W)/(T − W))), which would be 0 after the last step."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.4)
    scheduler = rate_schedule("warmup_cosine")(optimizer, steps)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    expected = [0.4 * (t + 1) / (warmup + 1) for t in range(warmup)]
    expected += [0.2 * (1 + math.cos(math.pi * (t - warmup) / (steps - warmup))) for t in range(warmup, steps)]
    assert rates == pytest.approx(expected, rel=1e-12)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-12)


def test_warm_up_and_cosine_go_on_after_a_kill(tmp_path: Path) -> None:
    """The learning rates of both kinds of coordinates follow the schedule, also after a checkpoint."""
    rates: list[float] = []

    class Watched(lb.optim.IVON):
        left = 100

        def step(self, closure=None):
            if not Watched.left:
                raise KeyboardInterrupt
            Watched.left -= 1
            rates.append(self.param_groups[0]["lr"])
            return super().step(closure)

    def train() -> lb.Bayesian:
        torch.manual_seed(0)
        bnn = lb.Bayesian(nn.Linear(2, 2))
        optimizer = Watched(bnn, 0.1, n_data=4, steps=8, initial_scale=0.1)
        how = lb.Optimization(optimizer, schedule="warmup_cosine")
        lb.fit(bnn, BATCHES, likelihood=lb.Categorical(), epochs=8, optimizer=how, checkpoint=folder)
        return bnn

    folder = tmp_path / "whole"
    whole = train()
    expected = rates[:]
    assert expected[:2] == pytest.approx([0.05, 0.1])
    folder, Watched.left = tmp_path / "stopped", 5
    with pytest.raises(KeyboardInterrupt):
        train()
    Watched.left = 100
    again = train()
    assert rates[8:] == expected
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize(("lookup", "wrong"), [(rate_schedule, "anneal"), (kl_schedule, "cosine"), (kl_schedule, "x")])
def test_a_schedule_of_the_other_kind_is_unknown(lookup, wrong: str) -> None:
    with pytest.raises(lb.errors.UnknownName, match=repr(wrong)):
        lookup(wrong)


def test_a_schedule_of_nothing_is_refused() -> None:
    with pytest.raises(lb.errors.InputError, match="schedules nothing"):
        NamedSchedule("idle")


def test_fit_takes_the_kl_weight_by_name() -> None:
    by_name, by_value = (
        lb.fit(lb.Bayesian(nn.Linear(2, 2)), BATCHES, likelihood=lb.Categorical(), epochs=3, kl_weight=weight)
        for weight in ("anneal", lb.anneal())
    )
    assert [row.kl_weight for row in by_name.epochs] == [row.kl_weight for row in by_value.epochs]


def test_a_schedule_from_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is one file, and the metadata that pip would install beside it."""
    (tmp_path / "their_schedule.py").write_text(
        "from torch.optim.lr_scheduler import StepLR\n"
        "from leanbayes.train import NamedSchedule\n"
        "HALVES = NamedSchedule('halves', rate=lambda optimizer, steps: StepLR(optimizer, 1, 0.5),\n"
        "                       kl_weight=lambda progress: 0.5 ** (2 * progress))\n"
    )
    metadata = tmp_path / "their_schedule-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: their-schedule\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[leanbayes.schedules]\nhalves = their_schedule:HALVES\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    fresh: Catalogue = Catalogue(
        "schedule", SCHEDULES._name_of, package="leanbayes.train.schedules", group="leanbayes.schedules"
    )
    monkeypatch.setattr(schedules, "SCHEDULES", fresh)
    rates: list[float] = []

    class Watched(torch.optim.SGD):
        def step(self, closure=None):
            rates.append(self.param_groups[0]["lr"])
            return super().step(closure)

    try:
        history = lb.fit(
            lb.Bayesian(nn.Linear(2, 2)),
            BATCHES,
            likelihood=lb.Categorical(),
            epochs=2,
            optimizer=lb.Optimization(Watched, lr=0.8, schedule="halves"),
            kl_weight="halves",
        )
    finally:
        sys.modules.pop("their_schedule", None)
    assert rates == [0.8, 0.4]
    assert [row.kl_weight for row in history.epochs] == [0.5, 0.25]
