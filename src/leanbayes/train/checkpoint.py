"""Checkpoints: the whole state of a training in one file, from which a killed training ends as it would have ended.

A checkpoint holds the weights, the state of the optimizer and of the schedule, the random states, and how far the
training is. It is a safetensors file with a JSON header, so reading it runs no code. The header carries the fingerprint
of the training, and checksums tell a damaged file, for which the checkpoint before it stands in.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._files import read_tensors, sweep, write_tensors
from leanbayes._passes import exclusive
from leanbayes._sharding import piece_of, whole
from leanbayes.errors import DamagedCheckpoint, FileError, ForeignFile, LeanBayesError, NewerFile
from leanbayes.train.history import Epoch
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
        notes: tensors that the report at the end needs.
    """

    modules: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler | None
    progress: dict[str, Any]
    notes: dict[str, Tensor] = field(default_factory=dict)


class Checkpoints:
    """A folder of checkpoints, of which the newest ``keep`` stay. Each file is written whole or not at all."""

    def __init__(self, folder: Path, keep: int) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot make the checkpoint folder {folder}: {error}") from error
        sweep(folder)
        self.folder, self.keep = folder, keep
        self.damaged: list[Path] = []

    def files(self) -> list[Path]:
        """Return the checkpoints, oldest first, without those that are damaged."""
        return sorted(path for path in self.folder.glob("step-*.safetensors") if path not in self.damaged)

    def save(self, training: Training, step: int, *, writes: bool = True) -> None:
        """Write a checkpoint, then remove those that are no longer needed.

        Args:
            training: what is saved. Where its tensors are sharded, all processes must call this method, because the
                whole tensors are gathered from their pieces.
            step: how many steps are done.
            writes: whether this process writes the file; the others only give their pieces.
        """
        tensors = {f"module.{name}": value for name, value in module_state(training.modules).items()}
        optimizer = training.optimizer.state_dict()
        numbers: dict[str, dict[str, Any]] = {}
        for index, state in optimizer["state"].items():
            for name, value in state.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{index}.{name}"] = value
                else:
                    numbers.setdefault(str(index), {})[name] = value
        tensors |= {f"note.{name}": value for name, value in training.notes.items()}
        rows = [astuple(Epoch(**row)) for row in training.progress["epochs"]]
        if rows:  # as a tensor, because a header has a bound, and a training may have any number of epochs
            tensors["epochs"] = _table(rows)
        python, states = RandomStates.capture().packed()
        header = {
            "kind": "checkpoint",
            "format": FORMAT,
            "step": step,
            "progress": training.progress | {"epochs": None},
            "groups": optimizer["param_groups"],
            "numbers": numbers,
            "schedule": None if training.schedule is None else _plain(training.schedule.state_dict()),
            "python": python,
        }
        unique = _whole_copies(tensors | states, keep=writes)
        if not writes:
            return
        path = self.folder / _NAME.format(step)
        write_tensors(path, unique, header)
        for old in [*self.files()[: -self.keep], *(bad for bad in self.damaged if bad != path)]:
            with suppress(OSError):  # an old file that stays does no harm
                old.unlink()
        self.damaged = []

    def restore(self, training: Training, check: Callable[[Path, Mapping[str, Any]], None]) -> RandomStates | None:
        """Bring back the newest checkpoint that is not damaged.

        Args:
            training: what gets the state of the checkpoint.
            check: is called with the path and the progress of the checkpoint before anything changes, and raises an
                error if that is another training.

        Returns:
            The random states of the checkpoint, or None if there is no checkpoint.
        """
        read = self._newest()
        if read is None:
            return None
        path, header, tensors = read
        try:
            progress = header["progress"] | {"epochs": _rows(header["progress"], tensors.get("epochs"))}
            _check_progress(progress)
            check(path, progress)
            names = module_state(training.modules)
            weights = {name: tensors[f"module.{name}"] for name in names}
            _check_shapes(names, weights)
            with exclusive(training.modules):
                _load(training.modules, weights)
            state: dict[int, dict[str, Any]] = {int(i): dict(values) for i, values in header["numbers"].items()}
            for name, value in tensors.items():
                kind, _, entry = name.partition(".")
                if kind == "optimizer":
                    index, _, key = entry.partition(".")
                    state.setdefault(int(index), {})[key] = value
                elif kind == "note":
                    if entry in training.notes:
                        _check_shapes({entry: training.notes[entry]}, {entry: value})
                    training.notes[entry] = value
            parameters = [one for group in training.optimizer.param_groups for one in group["params"]]
            for index_, entries in state.items():
                state[index_] = {key: piece_of(value, parameters[index_]) for key, value in entries.items()}
            training.optimizer.load_state_dict({"state": state, "param_groups": header["groups"]})
            if training.schedule is not None:
                training.schedule.load_state_dict(header["schedule"])
            training.progress.update(progress)
            random = {name: value for name, value in tensors.items() if name.startswith("random.")}
            return RandomStates.unpacked(header["python"], random)
        except (KeyError, IndexError, ValueError, RuntimeError, TypeError) as error:
            if isinstance(error, LeanBayesError):
                raise
            raise ForeignFile(
                f"{path} belongs to another training ({error}); choose another folder, or remove {self.folder}"
            ) from error

    def _newest(self) -> tuple[Path, dict[str, Any], dict[str, Tensor]] | None:
        """Read the newest checkpoint, or the one before it if that one is damaged, and so on."""
        files, reasons = self.files(), []
        for path in reversed(files):
            try:
                header, tensors = read_tensors(path, "checkpoint", FORMAT)
            except NewerFile:
                raise
            except FileError as error:
                reasons.append(error)
                self.damaged.append(path)
                continue
            if reasons:
                names = " and ".join(str(bad) for bad in self.damaged)
                message = f"{names} cannot be read ({reasons[0]}); fit goes on from {path}, the checkpoint before it"
                warnings.warn(message, DamagedCheckpoint, stacklevel=2)
            return path, header, tensors
        if reasons:
            raise FileError(
                f"no checkpoint in {self.folder} can be read ({reasons[0]}); remove the folder to train from the start"
            ) from reasons[0]
        return None


class Best:
    """The weights of the best epoch. They lie in the checkpoint folder, where a kill leaves them, or in memory."""

    def __init__(self, module: nn.Module, store: Checkpoints | None, writes: bool) -> None:
        self.module, self.writes = module, writes
        self.path = None if store is None else store.folder / "best.safetensors"
        self.memory: dict[str, Tensor] = {}

    def remember(self, epoch: int) -> None:
        """Remember the weights of this epoch as they are; of several processes one writes the file."""
        if self.path is None:
            self.memory = {name: value.detach().clone() for name, value in module_state(self.module).items()}
            return
        tensors = _whole_copies(module_state(self.module), keep=self.writes)
        if self.writes:
            write_tensors(self.path, tensors, {"kind": "best", "format": FORMAT, "epoch": epoch})

    def bring_back(self, epoch: int) -> None:
        """Put the weights of this epoch, which were remembered, into the module."""
        tensors = self.memory
        if self.path is not None:
            header, tensors = read_tensors(self.path, "best", FORMAT)
            if header.get("epoch", epoch) != epoch:  # version 0.1 did not write it
                raise FileError(
                    f"{self.path} holds the weights of epoch {header['epoch']}, and the best one is {epoch}; "
                    "remove the folder and train again"
                )
            try:
                _check_shapes(module_state(self.module), tensors)
            except (KeyError, ValueError) as error:
                raise ForeignFile(
                    f"{self.path} belongs to another training ({error}); remove the folder and train again"
                ) from error
        with exclusive(self.module):
            _load(self.module, tensors)


@torch.no_grad()
def _whole_copies(tensors: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """Return a copy of each tensor, gathered one after the other where it is sharded, or nothing if not to keep."""
    copies: dict[str, Tensor] = {}
    for name, value in tensors.items():
        gathered = whole(value.detach())
        if keep:
            copies[name] = gathered.contiguous().clone()
    return copies


def _load(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Write whole tensors into a module; where a parameter is sharded, each process takes its piece."""
    ours = module_state(module)
    module.load_state_dict(
        {name: piece_of(tensors[name], ours[name]) for name in tensors if name in ours}, strict=False
    )


def module_state(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a module by name, each tensor once."""
    with exclusive(module):  # the pass of another thread may have replaced the parameters
        return dict((*module.named_parameters(), *module.named_buffers()))


def _plain(value: Any) -> Any:
    """Return the state of a schedule as JSON can hold it: tensors become numbers, and functions are left out."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items() if not callable(item)}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, Tensor) else value


def _check_shapes(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    for name, value in ours.items():
        if value.shape != theirs[name].shape or value.dtype != theirs[name].dtype:
            raise ValueError(f"{name} is {value.dtype} of shape {tuple(value.shape)} here, and not so in the file")


def _check_progress(progress: Mapping[str, Any]) -> None:
    """Raise if the progress in a file is none that a training could have written, though its checksum is right."""
    counts = [progress.get(name, 0) for name in ("epoch", "batch", "step", "pass", "read")]
    best, rows, sums = progress.get("best"), progress["epochs"], progress.get("sums", [0.0] * 3)
    if not all(type(count) is int and 0 <= count < 2**53 for count in counts):
        raise ValueError(f"epoch, batch, step, pass and read are {counts!r:.80}")
    if not isinstance(progress.get("stopped"), str | None):
        raise ValueError(f"the reason of the end is {progress['stopped']!r:.40}")
    if best is not None and not (type(best) is int and 0 <= best < len(rows)):
        raise ValueError(f"the best of {len(rows)} epochs is {best!r:.40}")
    if not (isinstance(sums, list) and len(sums) == 3 and all(type(number) in (int, float) for number in sums)):
        raise ValueError(f"the sums are {sums!r:.80}")
    for row in rows:
        numbers = asdict(Epoch(**row))  # a TypeError if the names are others
        if any(type(number) not in (int, float, type(None)) for number in numbers.values()):
            raise ValueError(f"an epoch is {row!r:.80}")
    if not isinstance(progress.get("run"), Mapping) or not isinstance(progress.get("engine", {}), Mapping):
        raise ValueError("the settings of the training are missing")


def _table(rows: list[tuple[Any, ...]]) -> Tensor:
    numbers = [[math.nan if number is None else float(number) for number in row] for row in rows]
    return torch.tensor(numbers, dtype=torch.float64)


def _rows(progress: Mapping[str, Any], table: Tensor | None) -> list[dict[str, Any]]:
    """Return the epochs of a checkpoint; version 0.1 had them in the header."""
    if table is None:
        return list(progress["epochs"] or ())
    epochs = [Epoch(*row) for row in table.tolist()]
    plain = [replace(row, epoch=int(row.epoch), validation=_no_nan(row.validation)) for row in epochs]
    return [asdict(row) for row in plain]


def _no_nan(number: float | None) -> float | None:
    return None if number is None or math.isnan(number) else number
