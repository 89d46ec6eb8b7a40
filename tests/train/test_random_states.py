"""The global random states: kept, packed into a file, and put back."""

import random

import numpy as np
import pytest
import torch

from leanbayes.train.random_states import RandomStates, seed_all, states_restored


def draws() -> tuple[float, float, float, float]:
    return random.random(), random.gauss(0, 1), float(np.random.randn()), float(torch.rand(()))  # noqa: NPY002


def test_states_come_back_also_after_an_error() -> None:
    before = RandomStates.capture()
    expected = draws()
    before.restore()
    with pytest.raises(ZeroDivisionError):
        fail_among_other_states()
    assert draws() == expected


@states_restored()
def fail_among_other_states() -> None:
    seed_all(3)
    draws()
    raise ZeroDivisionError


def test_packed_states_are_unpacked() -> None:
    draws()  # the second normal number of a pair is now waiting in NumPy's and in Python's state
    states = RandomStates.capture()
    expected = draws()
    seed_all(5)
    RandomStates.unpacked(*states.packed()).restore()
    assert draws() == expected


def test_one_seed_gives_one_state() -> None:
    seed_all(2**40 + 7)
    first = draws()
    seed_all(2**40 + 7)
    assert draws() == first


def test_the_states_of_cuda_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no such device here, so its functions are replaced."""
    held = {0: torch.tensor([1]), 1: torch.tensor([2])}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda index: held[index].clone())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, index: held.__setitem__(index, state))
    with states_restored():
        held[0], held[1] = torch.tensor([8]), torch.tensor([9])
    assert [int(held[index]) for index in (0, 1)] == [1, 2]
    _, tensors = RandomStates.capture().packed()
    assert [name for name in tensors if "cuda" in name] == ["random.cuda.0", "random.cuda.1"]
