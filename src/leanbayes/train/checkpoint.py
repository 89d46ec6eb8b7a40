"""The whole state of a training in one file: weights, optimizer, schedule, random states, place. No pickle."""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from leanbayes._files import read_tensors, write_tensors
from leanbayes.errors import FileError, ForeignFile, InputError

__all__ = ["FORMAT", "Checkpoints", "Training", "module_state", "seed_all"]

FORMAT = 1
_NAME = "step-{:010d}.safetensors"


@dataclass
class Training:
    """What a training consists of at one moment; ``progress`` is anything JSON can hold."""

    modules: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler | None
    progress: dict[str, Any]


class Checkpoints:
    """A folder of checkpoints: the newest ``keep`` of them stay. Each is written whole or not at all."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        if keep < 1:
            raise InputError(f"keep must be at least 1, got {keep}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot make the checkpoint folder {folder}: {error}") from error
        self.folder, self.keep = folder, keep
        self.random: tuple[list[Any], dict[str, Tensor]] | None = None

    def files(self) -> list[Path]:
        """Oldest first."""
        return sorted(self.folder.glob("step-*.safetensors"))

    def save(self, training: Training, step: int) -> None:
        """Write one, then remove those that are no longer needed."""
        tensors = {f"module.{name}": value for name, value in module_state(training.modules).items()}
        optimizer = training.optimizer.state_dict()
        numbers: dict[str, dict[str, Any]] = {}
        for index, state in optimizer["state"].items():
            for name, value in state.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{index}.{name}"] = value
                else:
                    numbers.setdefault(str(index), {})[name] = value
        tensors |= _random_tensors()
        version, words, gauss = random.getstate()
        header = {
            "kind": "checkpoint",
            "format": FORMAT,
            "step": step,
            "progress": training.progress,
            "groups": optimizer["param_groups"],
            "numbers": numbers,
            "schedule": None if training.schedule is None else _plain(training.schedule.state_dict()),
            "python": [version, list(words), gauss],
        }
        unique = {name: value.detach().contiguous().clone() for name, value in tensors.items()}
        write_tensors(self.folder / _NAME.format(step), unique, header)
        for old in self.files()[: -self.keep]:
            old.unlink(missing_ok=True)

    def restore(self, training: Training) -> bool:
        """Bring back the newest checkpoint; False where there is none. Random states are set too."""
        files = self.files()
        if not files:
            return False
        header, tensors = read_tensors(files[-1], "checkpoint", FORMAT)
        try:
            own = module_state(training.modules)
            training.modules.load_state_dict({name: tensors[f"module.{name}"] for name in own}, strict=False)
            state: dict[int, dict[str, Any]] = {int(i): dict(values) for i, values in header["numbers"].items()}
            for name, value in tensors.items():
                kind, _, rest = name.partition(".")
                if kind == "optimizer":
                    index, _, key = rest.partition(".")
                    state.setdefault(int(index), {})[key] = value
            training.optimizer.load_state_dict({"state": state, "param_groups": header["groups"]})
            if training.schedule is not None:
                training.schedule.load_state_dict(header["schedule"])
            training.progress.update(header["progress"])
            self.random = (header["python"], {name: v for name, v in tensors.items() if name.startswith("random.")})
            self.set_random_states()
        except (KeyError, ValueError, RuntimeError, TypeError) as error:
            raise ForeignFile(
                f"{files[-1]} is of another training ({error}); give another folder, or remove {self.folder}"
            ) from error
        return True

    def set_random_states(self) -> None:
        """Those of the checkpoint that was restored, if one was."""
        if self.random is not None:
            _set_random_states(*self.random)


def module_state(module: nn.Module) -> dict[str, Tensor]:
    """The module's tensors, each once."""
    named: Iterable[tuple[str, Tensor]] = (*module.named_parameters(), *module.named_buffers())
    return dict(named)


def _plain(value: Any) -> Any:
    """A schedule's state as JSON: tensors become numbers, functions are left out."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items() if not callable(item)}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, Tensor) else value


def seed_all(seed: int) -> None:
    """Every global random state that a model or a data set may use."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.manual_seed(seed)


def _random_tensors() -> dict[str, Tensor]:
    state: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - the global state, for data sets that use it
    inner = state["state"]
    place = [inner["pos"], state["has_gauss"]]
    tensors = {
        "random.torch": torch.get_rng_state(),
        "random.numpy": torch.from_numpy(inner["key"].astype(np.int64)),
        "random.place": torch.tensor(place),
        "random.gauss": torch.tensor(state["gauss"], dtype=torch.float64),
    }
    if torch.cuda.is_available():
        tensors |= {f"random.cuda.{i}": torch.cuda.get_rng_state(i) for i in range(torch.cuda.device_count())}
    return tensors


def _set_random_states(python: list[Any], tensors: dict[str, Tensor]) -> None:
    version, words, gauss = python
    random.setstate((version, tuple(words), gauss))
    torch.set_rng_state(tensors["random.torch"])
    place, has_gauss = tensors["random.place"].tolist()
    key = np.array(tensors["random.numpy"].tolist(), dtype=np.uint32)
    np.random.set_state(("MT19937", key, place, has_gauss, float(tensors["random.gauss"])))  # noqa: NPY002
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        torch.cuda.set_rng_state(tensors[f"random.cuda.{index}"], index)
