"""A forged checkpoint of a sharded training runs nothing."""

import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.train.sharded_files import Planner, Reader


class Trap:
    """A pickle that makes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, lb.Objective, lb.optim.IVON]:
    objective = lb.Objective(lb.Bayesian(nn.Linear(2, 2)), lb.Categorical(), n_data=8, with_kl=False)
    optimizer = lb.optim.IVON(objective.model, lr=0.1, n_data=8, steps=4)
    lb.train.save_sharded(tmp_path / "run", objective, optimizer, step=1)
    return tmp_path, objective, optimizer


def test_a_description_that_would_run_code_is_refused(saved: tuple[Path, lb.Objective, lb.optim.IVON]) -> None:
    home, objective, optimizer = saved
    file = next((home / "run").glob("*/.metadata"))
    whole = file.read_bytes()
    for forged in (pickle.dumps(Trap(home / "sprung")), pickle.dumps({"a": 1}), whole[:50], b""):
        file.write_bytes(forged)
        with pytest.raises((lb.errors.FileError, lb.errors.ForeignFile), match="description of a checkpoint"):
            lb.train.load_sharded(home / "run", objective, optimizer)
    assert not (home / "sprung").exists()
    pickle.loads(pickle.dumps(Trap(home / "sprung")))  # noqa: S301
    assert (home / "sprung").exists()  # the trap works where it is not refused
    file.write_bytes(whole)
    assert lb.train.load_sharded(home / "run", objective, optimizer) == {"step": 1, "processes": 1}


def test_numbers_beside_the_tensors_are_nothing_but_such(tmp_path: Path) -> None:
    trap = io.BytesIO()
    torch.save(Trap(tmp_path / "sprung"), trap)
    trap.seek(0)
    with pytest.raises(pickle.UnpicklingError):
        Planner().load_bytes(None, trap)  # type: ignore[arg-type]
    assert not (tmp_path / "sprung").exists()


def test_the_description_is_that_of_torch(saved: tuple[Path, lb.Objective, lb.optim.IVON]) -> None:
    folder = next((saved[0] / "run").iterdir())
    ours = Reader(folder).read_metadata()
    theirs = pickle.loads((folder / ".metadata").read_bytes())  # noqa: S301
    assert ours.state_dict_metadata == theirs.state_dict_metadata
    assert ours.storage_data == theirs.storage_data
