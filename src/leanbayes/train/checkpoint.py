"""Checkpoints: the whole state of a training in one file, from which a killed training ends as it would have ended.

A checkpoint holds the weights, the state of the optimizer and of the schedule, the random states, and how far the
training is. It is a safetensors file with a JSON header, so reading it runs no code.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._files import read_tensors, write_tensors
from leanbayes.errors import FileError, ForeignFile
from leanbayes.train.random_states import RandomStates

__all__ = ["FORMAT", "Best", "Checkpoints", "Training", "module_state"]

FORMAT = 1
_NAME = "step-{:010d}.safetensors"


@dataclass
class Training:
    """All that changes during a training.

    Attributes:
        modules: the model and its likelihood.
        optimizer: the optimizer.
        schedule: the schedule of the learning rate, or None for a constant one.
        progress: how far the training is, as JSON can hold it.
    """

    modules: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler | None
    progress: dict[str, Any]


class Checkpoints:
    """A folder of checkpoints, of which the newest ``keep`` stay. Each file is written whole or not at all."""

    def __init__(self, folder: Path, keep: int) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot make the checkpoint folder {folder}: {error}") from error
        self.folder, self.keep = folder, keep
        self.random: RandomStates | None = None

    def files(self) -> list[Path]:
        """Return the checkpoints, oldest first."""
        return sorted(self.folder.glob("step-*.safetensors"))

    def save(self, training: Training, step: int) -> None:
        """Write a checkpoint, then remove those that are no longer needed."""
        tensors = {f"module.{name}": value for name, value in module_state(training.modules).items()}
        optimizer = training.optimizer.state_dict()
        numbers: dict[str, dict[str, Any]] = {}
        for index, state in optimizer["state"].items():
            for name, value in state.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{index}.{name}"] = value
                else:
                    numbers.setdefault(str(index), {})[name] = value
        python, states = RandomStates.capture().packed()
        header = {
            "kind": "checkpoint",
            "format": FORMAT,
            "step": step,
            "progress": training.progress,
            "groups": optimizer["param_groups"],
            "numbers": numbers,
            "schedule": None if training.schedule is None else _plain(training.schedule.state_dict()),
            "python": python,
        }
        unique = {name: value.detach().contiguous().clone() for name, value in (tensors | states).items()}
        write_tensors(self.folder / _NAME.format(step), unique, header)
        for old in self.files()[: -self.keep]:
            old.unlink(missing_ok=True)

    def restore(self, training: Training) -> bool:
        """Bring back the newest checkpoint with its random states. Return whether there is one."""
        files = self.files()
        if not files:
            return False
        header, tensors = read_tensors(files[-1], "checkpoint", FORMAT)
        try:
            names = module_state(training.modules)
            training.modules.load_state_dict({name: tensors[f"module.{name}"] for name in names}, strict=False)
            state: dict[int, dict[str, Any]] = {int(i): dict(values) for i, values in header["numbers"].items()}
            for name, value in tensors.items():
                kind, _, entry = name.partition(".")
                if kind == "optimizer":
                    index, _, key = entry.partition(".")
                    state.setdefault(int(index), {})[key] = value
            training.optimizer.load_state_dict({"state": state, "param_groups": header["groups"]})
            if training.schedule is not None:
                training.schedule.load_state_dict(header["schedule"])
            training.progress.update(header["progress"])
            self.random = RandomStates.unpacked(
                header["python"], {name: value for name, value in tensors.items() if name.startswith("random.")}
            )
            self.random.restore()
        except (KeyError, ValueError, RuntimeError, TypeError) as error:
            raise ForeignFile(
                f"{files[-1]} belongs to another training ({error}); choose another folder, or remove {self.folder}"
            ) from error
        return True

    def set_random_states(self) -> None:
        """Set the random states of the checkpoint that was restored, if one was."""
        if self.random is not None:
            self.random.restore()


class Best:
    """The weights of the best epoch. They lie in the checkpoint folder, where a kill leaves them, or in memory."""

    def __init__(self, module: nn.Module, store: Checkpoints | None, writes: bool) -> None:
        self.module, self.writes = module, writes
        self.path = None if store is None else store.folder / "best.safetensors"
        self.memory: dict[str, Tensor] = {}

    def remember(self) -> None:
        """Remember the weights as they are; of several processes one writes the file."""
        if self.path is None:
            self.memory = {name: value.detach().clone() for name, value in module_state(self.module).items()}
        elif self.writes:
            tensors = {name: value.detach().clone() for name, value in module_state(self.module).items()}
            write_tensors(self.path, tensors, {"kind": "best", "format": FORMAT})

    def bring_back(self) -> None:
        """Put the remembered weights into the module."""
        tensors = self.memory if self.path is None else read_tensors(self.path, "best", FORMAT)[1]
        self.module.load_state_dict(tensors, strict=False)


def module_state(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a module by name, each tensor once."""
    return dict((*module.named_parameters(), *module.named_buffers()))


def _plain(value: Any) -> Any:
    """Return the state of a schedule as JSON can hold it: tensors become numbers, and functions are left out."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items() if not callable(item)}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, Tensor) else value
