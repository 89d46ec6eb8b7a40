"""The global random states of Python, NumPy and torch: seed them, keep them in a file, and put them back."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["RandomStates", "seed_all", "states_restored"]


@dataclass(frozen=True)
class RandomStates:
    """The states of all global random generators at one moment.

    Attributes:
        python: the state of the module ``random``.
        numpy: the state of ``numpy.random``, which data sets may use.
        torch: the state of torch's generator on the CPU.
        cuda: the states of torch's generators on the CUDA devices.
    """

    python: tuple[Any, ...]
    numpy: dict[str, Any]
    torch: Tensor
    cuda: tuple[Tensor, ...]

    @classmethod
    def capture(cls) -> "RandomStates":
        """Return the states as they are now."""
        numpy: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - the global state is what is wanted
        cuda = tuple(torch.cuda.get_rng_state(index) for index in range(_cuda_devices()))
        return cls(random.getstate(), numpy, torch.get_rng_state(), cuda)

    def restore(self) -> None:
        """Set all generators to these states."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)  # noqa: NPY002
        torch.set_rng_state(self.torch)
        for index, state in enumerate(self.cuda[: _cuda_devices()]):
            torch.cuda.set_rng_state(state, index)

    def packed(self) -> tuple[list[Any], dict[str, Tensor]]:
        """Return the states as a file holds them: JSON for Python's, tensors for the others."""
        version, words, gauss = self.python
        inner = self.numpy["state"]
        tensors = {
            "random.torch": self.torch,
            "random.numpy": torch.from_numpy(inner["key"].astype(np.int64)),
            "random.place": torch.tensor([inner["pos"], self.numpy["has_gauss"]]),
            "random.gauss": torch.tensor(self.numpy["gauss"], dtype=torch.float64),
        }
        tensors |= {f"random.cuda.{index}": state for index, state in enumerate(self.cuda)}
        return [version, list(words), gauss], tensors

    @classmethod
    def unpacked(cls, python: list[Any], tensors: dict[str, Tensor]) -> "RandomStates":
        """Return what `packed` has packed."""
        version, words, gauss = python
        position, has_gauss = tensors["random.place"].tolist()
        key = np.array(tensors["random.numpy"].tolist(), dtype=np.uint32)
        numpy = {
            "bit_generator": "MT19937",
            "state": {"key": key, "pos": position},
            "has_gauss": has_gauss,
            "gauss": float(tensors["random.gauss"]),
        }
        count = sum(name.startswith("random.cuda.") for name in tensors)
        cuda = tuple(tensors[f"random.cuda.{index}"] for index in range(count))
        return cls((version, tuple(words), gauss), numpy, tensors["random.torch"], cuda)


def seed_all(seed: int) -> None:
    """Seed every global random generator that a model or a data set may use."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:  # torch.manual_seed would store the call, with a trace of the stack, for each kind of device that is missing
        torch.default_generator.manual_seed(seed)


@contextmanager
def states_restored() -> Iterator[None]:
    """Leave the global random states as they were before, also after an error."""
    before = RandomStates.capture()
    try:
        yield
    finally:
        before.restore()


def _cuda_devices() -> int:
    """How many CUDA devices have a state that can be read; a forked process cannot use CUDA at all."""
    return torch.cuda.device_count() if torch.cuda.is_available() and not torch.cuda._is_in_bad_fork() else 0
