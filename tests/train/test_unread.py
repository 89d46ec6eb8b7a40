"""Losses on a GPU are read together, and the first that is not finite is named before any weights are kept."""

from pathlib import Path

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.errors import NonFinite
from leanbayes.train import unread
from leanbayes.train.unread import UnreadLosses

GPU = torch.device("cuda")


def test_the_first_bad_step_is_named() -> None:
    losses = UnreadLosses(GPU)
    for step, value in enumerate([1.0, 2.0, float("inf"), float("nan")]):
        losses.add(f"step {step}", torch.tensor(value))
    with pytest.raises(NonFinite, match=r"step 2: the loss is inf; .*learning rate"):
        losses.read()
    losses.read()  # what was read is forgotten


def test_losses_are_read_once_in_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, each step read its loss, and so waited for the GPU."""
    reads = []
    monkeypatch.setattr(torch, "stack", lambda tensors: reads.append(len(tensors)) or torch.zeros(len(tensors)))
    losses = UnreadLosses(GPU)
    for step in range(2 * unread._MOST + 1):
        losses.add(str(step), torch.tensor(0.0))
    assert reads == [unread._MOST, unread._MOST]


def test_fit_keeps_no_weights_from_after_a_bad_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: the losses are read before each checkpoint, and the first bad step is named."""
    for module in ("loop", "unread"):
        monkeypatch.setattr(f"leanbayes.train.{module}.reading_waits", lambda device: True)
    x, y = torch.linspace(-1, 1, 12).reshape(4, 3), torch.tensor([0, 1, 0, 1])
    data = [(x, y)] * 5 + [(x * float("nan"), y)] + [(x, y)] * 5
    bnn = lb.Bayesian(nn.Linear(3, 2))
    with pytest.raises(NonFinite, match="step 5, epoch 0, batch 5"):
        lb.fit(bnn, data, likelihood=lb.Categorical(), epochs=1, checkpoint=lb.Checkpointing(tmp_path, every=4))
    kept = sorted(path.name for path in tmp_path.glob("step-*"))
    assert [int("".join(filter(str.isdigit, name))) for name in kept] == [4]


def test_on_the_cpu_nothing_is_collected() -> None:
    losses = UnreadLosses(torch.device("cpu"))
    losses.add("step 0", torch.tensor(float("nan")))
    assert losses.losses == []
