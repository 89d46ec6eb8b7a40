"""False alarms are as rare as Ville's inequality says, and shifts are noticed."""

import numpy as np
import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.conformal import Monitor, Sets


@pytest.mark.parametrize("kind", ["continuous", "tied", "constant"])
def test_false_alarms_are_rare(kind: str) -> None:
    """Over 150 streams of 400 examples at α = 0.2; a test at every example would otherwise alarm almost always."""
    source, alarms = np.random.default_rng(0), 0
    for stream in range(150):
        scores = torch.from_numpy(source.normal(size=450))
        scores = {"continuous": scores, "tied": scores.round(), "constant": torch.zeros_like(scores)}[kind]
        monitor = Monitor(scores[:50], alpha=0.2, seed=stream)
        for batch in scores[50:].split(100):
            watch = monitor.update(batch)
        alarms += watch.alarm
    assert alarms / 150 <= 0.2 + 4 * (0.16 / 150) ** 0.5


def test_the_capital_is_a_martingale() -> None:
    """Its mean over streams stays 1 while examples are exchangeable."""
    source, ends = np.random.default_rng(1), []
    for stream in range(600):
        scores = torch.from_numpy(source.exponential(size=60))
        ends.append(Monitor(scores[:30], seed=stream).update(scores[30:]).evidence)
    assert abs(np.mean(ends) - 1) < 4 * np.std(ends) / 600**0.5


@pytest.mark.parametrize("shift", [1.0, -1.0])
def test_shifts_are_noticed_and_alarms_stay(shift: float) -> None:
    source = torch.Generator().manual_seed(0)
    monitor = Monitor(torch.randn(500, generator=source), alpha=0.01)
    assert not monitor.update(torch.randn(200, generator=source)).alarm
    watch = monitor.update(shift + torch.randn(300, generator=source))
    assert watch.alarm
    assert watch.at is not None
    assert 200 < watch.at <= 500
    again = monitor.update(torch.randn(10, generator=source))
    assert (again.alarm, again.at, again.seen) == (True, watch.at, 510)
    assert again.highest >= 100


def test_batches_do_not_matter() -> None:
    scores = torch.randn(100, generator=torch.Generator().manual_seed(0))
    one, other = (Monitor(scores[:50], seed=3) for _ in range(2))
    whole = one.update(scores[50:])
    for part in scores[50:].split(7):
        watch = other.update(part)
    assert watch == whole


def test_a_monitor_of_a_conformal_predictor() -> None:
    source = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(900, 4, generator=source)
    y = torch.distributions.Categorical(logits=logits).sample()
    sets = Sets(nn.Identity(), score="lac").calibrate([(logits[:400], y[:400])])
    monitor = Monitor.of(sets, alpha=0.01)
    assert not monitor.update(sets.scores(logits[400:700], y[400:700])).alarm
    assert monitor.update(sets.scores(logits[700:], torch.zeros(200).long())).alarm


def test_bad_input_is_refused() -> None:
    with pytest.raises(lb.errors.InputError, match="got none"):
        Monitor(torch.zeros(0))
    with pytest.raises(lb.errors.NonFinite, match="NaN"):
        Monitor(torch.randn(5)).update(torch.tensor([torch.nan]))
    with pytest.raises(lb.errors.InputError, match="alpha"):
        Monitor(torch.randn(5), alpha=5)
    with pytest.raises(lb.errors.InputError, match="tensor"):
        Monitor([1.0])  # type: ignore[arg-type]
    with pytest.raises(lb.errors.InputError, match="calibrated Sets"):
        Monitor.of(Sets(nn.Identity()))
    x = torch.randn(30, 2)
    with pytest.raises(lb.errors.InputError, match="calibrated with weights"):
        Monitor.of(Sets(nn.Identity()).calibrate([(x, x.argmax(1))], weight=lambda x: x[:, 0].exp()))
