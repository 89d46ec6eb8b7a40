"""Schedules by name: those of LeanBayes, and one from another package."""

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
    assert list(SCHEDULES) == ["anneal", "constant", "cosine", "warm_up"]
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
