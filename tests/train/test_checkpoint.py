"""Checkpoints: how many stay, what they hold, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes._files import read_tensors, write_tensors
from leanbayes.train.checkpoint import Checkpoints, module_state

BATCHES = [(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))] * 3


def train(folder: Path, **options: Any) -> lb.Bayesian:
    torch.manual_seed(2)
    bnn = lb.Bayesian(nn.Linear(3, 2))
    lb.fit(bnn, BATCHES, **({"likelihood": lb.Categorical(), "epochs": 2, "checkpoint": folder} | options))
    return bnn


@pytest.mark.parametrize(("every", "keep", "steps"), [(None, 2, [3, 6]), (1, 3, [4, 5, 6]), (4, 1, [6])])
def test_the_newest_stay(tmp_path: Path, every: int | None, keep: int, steps: list[int]) -> None:
    train(tmp_path, checkpoint=lb.Checkpointing(tmp_path, every, keep))
    files = Checkpoints(tmp_path, keep).files()
    assert [int(path.stem.removeprefix("step-")) for path in files] == steps


@pytest.mark.parametrize(
    "other",
    [
        {"optimizer": lb.Optimization(lr=0.1)},
        {"optimizer": "sgd"},
        {"kl_weight": 0.5},
        {"kl_weight": lb.anneal(0.3)},
        {"samples": 2},
        {"seed": 1},
        {"n_data": 50},
    ],
    ids=str,
)
def test_a_setting_that_changes_the_result_makes_another_training(tmp_path: Path, other: dict[str, Any]) -> None:
    train(tmp_path)
    with pytest.raises(lb.errors.InputError, match=r"holds a training with.*this one has.*another folder"):
        train(tmp_path, **other)


def test_a_checkpoint_of_version_0_1_is_continued(tmp_path: Path) -> None:
    """Version 0.1 wrote fewer settings, and no state of the engine."""
    whole = train(tmp_path / "whole")
    train(tmp_path / "old", checkpoint=lb.Checkpointing(tmp_path / "old", every=1, keep=6))
    files = Checkpoints(tmp_path / "old", 6).files()
    header, tensors = read_tensors(files[1], "checkpoint", 1)
    run = header["progress"]["run"]
    header["progress"]["run"] = {name: run[name] for name in ("epochs", "batches", "n_data", "seed", "parts")}
    del header["progress"]["engine"]
    write_tensors(files[1], tensors, header)
    for newer in files[2:]:
        newer.unlink()
    resumed = train(tmp_path / "old")
    assert all(torch.equal(value, resumed.state_dict()[name]) for name, value in whole.state_dict().items())


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(lb.errors.FileError, match="cannot make the checkpoint folder"):
        train(tmp_path / "file" / "folder")


def test_tied_tensors_are_held_once() -> None:
    model = nn.ModuleDict({"one": nn.Linear(2, 2), "two": nn.Linear(2, 2)})
    model["two"].weight = model["one"].weight
    assert list(module_state(model)) == ["one.weight", "one.bias", "two.bias"]
