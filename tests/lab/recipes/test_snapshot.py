"""Snapshots: one training in cycles, whose ends predict together."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.errors import InputError
from leanbayes.lab.recipes import Run, parse, prepare
from leanbayes.lab.recipes import run as run_module
from tests import tasks
from tests.lab.recipes.cases import BUDGET


def test_cycles_share_the_epochs_and_each_goes_on_from_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    plain_fit = run_module.fit

    def fit(model: nn.Module, batches: Any, **options: Any) -> Any:
        start = {name: value.clone() for name, value in model.state_dict().items()}
        history = plain_fit(model, batches, **options)
        calls.append(options | {"start": start, "end": {n: v.clone() for n, v in model.state_dict().items()}})
        return history

    monkeypatch.setattr(run_module, "fit", fit)
    task = tasks.pictures()
    budget = replace(BUDGET, patience=1)
    predictor = prepare(parse("snapshot:members=3,lr=0.03"), task, Run(budget)).predictor
    assert [call["epochs"] for call in calls] == [2, 3, 3]
    assert len({call["seed"] for call in calls}) == 3  # so each cycle sees the data in another order
    for call in calls:
        how = call["optimizer"]
        assert (how.lr, how.schedule, how.patience, how.optimizer) == (0.03, "cosine", None, "adam")
    for before, after in pairwise(calls):
        assert all(torch.equal(after["start"][name], before["end"][name]) for name in before["end"])
    members = [member.state_dict() for member in predictor.models]
    assert len(members) == 3
    for member, call in zip(members, calls, strict=True):
        assert all(torch.equal(member[name], call["end"][name]) for name in member)
    assert not torch.equal(members[0]["0.weight"], members[1]["0.weight"])


def test_the_prediction_is_the_mean_of_the_snapshots() -> None:
    task = tasks.classes()
    predictor = prepare(parse("snapshot:members=2"), task, Run(BUDGET)).predictor
    x, _ = task.test[:]
    with torch.no_grad():
        mean = torch.stack([member.double()(x.double()).softmax(1) for member in predictor.models]).mean(0)
    torch.testing.assert_close(lb.predict(predictor.float(), x).mean.double(), mean, rtol=1e-5, atol=1e-6)


def test_what_has_too_few_epochs_is_refused() -> None:
    with pytest.raises(InputError, match="5 members needs at least as many epochs, got 4"):
        prepare(parse("snapshot"), tasks.classes(), Run(replace(BUDGET, epochs=4)))
    for spec in ("snapshot:members=1", "snapshot:lr=0"):
        with pytest.raises(InputError, match="must lie in"):
            parse(spec)
