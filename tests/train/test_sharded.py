"""Checkpoints of sharded trainings, in one process; `tests/sharded` has several."""

from pathlib import Path

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.errors import FileError, ForeignFile, InputError


def training(inputs: int = 3, n_data: int = 50) -> tuple[lb.Objective, lb.optim.IVON]:
    torch.manual_seed(0)
    bnn = lb.Bayesian(nn.Sequential(nn.Linear(inputs, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), propagate="mirrored")
    objective = lb.Objective(bnn, lb.Categorical(), n_data=n_data, with_kl=False)
    return objective, lb.optim.IVON(bnn, n_data=n_data, steps=6, average=0.5)


def steps(objective: lb.Objective, optimizer: lb.optim.IVON, numbers: range) -> None:
    for number in numbers:
        source = torch.Generator().manual_seed(number)
        x, y = torch.randn(8, 3, generator=source), torch.randint(2, (8,), generator=source)
        optimizer.zero_grad()
        objective(x, y, generator=source).loss.backward()
        optimizer.step()


def test_a_training_goes_on_where_it_was(tmp_path: Path) -> None:
    objective, optimizer = training()
    assert lb.train.load_sharded(tmp_path, objective, optimizer) is None
    steps(objective, optimizer, range(4))
    lb.train.save_sharded(tmp_path, objective, optimizer, 4, epoch=2)
    steps(objective, optimizer, range(4, 6))
    again, other = training()
    assert lb.train.load_sharded(tmp_path, again, other) == {"step": 4, "processes": 1, "epoch": 2}
    steps(again, other, range(4, 6))
    assert other.use_averages()
    assert optimizer.use_averages()
    for one, two in zip(objective.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(one, two)


def test_the_newest_whole_checkpoints_stay(tmp_path: Path) -> None:
    objective, optimizer = training()
    for step in range(3):
        lb.train.save_sharded(tmp_path, objective, optimizer, step)
    (tmp_path / "step-0000000009.part").mkdir()  # a process was killed while it wrote
    about = lb.train.load_sharded(tmp_path, objective, optimizer)
    assert about is not None
    assert about["step"] == 2
    assert sorted(path.name for path in tmp_path.glob("step-*[0-9]")) == ["step-0000000001", "step-0000000002"]


def test_what_is_foreign_or_damaged_is_said(tmp_path: Path) -> None:
    objective, optimizer = training()
    lb.train.save_sharded(tmp_path, objective, optimizer, 1)
    with pytest.raises(ForeignFile, match=r"belongs to another model: 'model.model.0.weight' is \[4, 3\] of"):
        lb.train.load_sharded(tmp_path, *training(inputs=5))
    with pytest.raises(ForeignFile, match="has optimizer IVON, and this training has SGD"):
        lb.train.load_sharded(tmp_path, objective, torch.optim.SGD(objective.parameters(), lr=0.1))
    with pytest.raises(InputError, match="this IVON has n_data=60, and the state that is loaded has 50"):
        lb.train.load_sharded(tmp_path, *training(n_data=60))
    with pytest.raises(InputError, match="step must be a whole number"):
        lb.train.save_sharded(tmp_path, objective, optimizer, -1)
    newest = next(tmp_path.glob("step-*"))
    for file in newest.glob("*.distcp"):
        file.write_bytes(b"")
    with pytest.raises(FileError, match="cannot be read"):
        lb.train.load_sharded(tmp_path, objective, optimizer)
    (newest / "about.json").write_text("{}")
    with pytest.raises(ForeignFile, match=r"is no checkpoint of leanbayes\.train\.save_sharded"):
        lb.train.load_sharded(tmp_path, objective, optimizer)
