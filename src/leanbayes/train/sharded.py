"""Checkpoints of a training whose weights are sharded over processes, in a loop of one's own.

Each process writes the pieces that it holds (`torch.distributed.checkpoint`), and any number of processes can read them
again, each the pieces that it needs. A checkpoint is a folder that gets its name when it is whole, so a kill leaves
either all of it or nothing with that name. The files are those of torch; `leanbayes.train.sharded_files` reads them
without running anything that they may hold.
"""

import json
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from leanbayes._files import flush, write_text
from leanbayes.errors import FileError, ForeignFile, InputError

__all__ = ["load_sharded", "save_sharded"]

_NAME, _ABOUT, _FORMAT = "step-{:010d}", "about.json", 1


def save_sharded(
    folder: str | Path, module: nn.Module, optimizer: Optimizer, step: int, *, keep: int = 2, **more: Any
) -> None:
    """Write a checkpoint of a sharded training. All processes must call this function together.

    Args:
        folder: the folder of the checkpoints, which all processes can write to.
        module: what is trained, usually a `leanbayes.Objective` after ``fully_shard``.
        optimizer: its optimizer, `leanbayes.optim.IVON` or one of torch.
        step: how many steps are done.
        keep: how many checkpoints stay.
        more: numbers and words that `load_sharded` gives back, such as the epoch.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.checkpoint.state_dict_saver import save

    if not isinstance(step, int) or step < 0 or keep < 1:
        raise InputError(f"step must be a whole number of at least 0, and keep at least 1; got {step!r} and {keep!r}")
    home = Path(folder)
    final = home / _NAME.format(step)
    part = final.with_name(f"{final.name}.part")
    if _is_first():
        shutil.rmtree(part, ignore_errors=True)  # what a kill has left
        part.mkdir(parents=True, exist_ok=True)
    _wait()
    weights, states = get_state_dict(module, optimizer)
    try:
        with _one_process_is_meant():
            save({"module": weights, "optimizer": states}, checkpoint_id=part)
    except (OSError, CheckpointException) as error:
        raise FileError(f"cannot write {final} ({_reason(error)}); the checkpoint before it stays as it is") from error
    if _is_first():
        about = {"format": _FORMAT, "step": step, "processes": _number(), "more": more, **_described(module, optimizer)}
        write_text(part / _ABOUT, json.dumps(about))
        flush(part)
        shutil.rmtree(final, ignore_errors=True)
        part.rename(final)
        flush(home)
        for old in _whole_ones(home)[:-keep]:
            shutil.rmtree(old, ignore_errors=True)
    _wait()


def load_sharded(folder: str | Path, module: nn.Module, optimizer: Optimizer) -> dict[str, Any] | None:
    """Bring back the newest checkpoint, written by any number of processes. All processes must call it together.

    Args:
        folder: the folder of the checkpoints.
        module: what is trained, sharded as it is to be; its weights are replaced.
        optimizer: its optimizer, with the same settings as when the checkpoint was written.

    Returns:
        ``{"step": ..., "processes": ...}`` with what `save_sharded` was told beside the step, or None if there is no
        checkpoint.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.checkpoint.state_dict_loader import load

    from leanbayes.train.sharded_files import Planner, Reader

    files = _whole_ones(Path(folder))
    if not files:
        return None
    newest = files[-1]
    about = _read(newest)
    _refuse_foreign(newest, about, _described(module, optimizer))
    weights, states = get_state_dict(module, optimizer)
    state: dict[str, Any] = {"module": weights, "optimizer": states}
    try:
        with _one_process_is_meant():
            load(state, storage_reader=Reader(newest), planner=Planner())
    except (RuntimeError, OSError, CheckpointException) as error:
        raise FileError(
            f"{newest} cannot be read ({_reason(error)}); remove it, and the one before it is used"
        ) from error
    set_state_dict(module, optimizer, model_state_dict=state["module"], optim_state_dict=state["optimizer"])
    return {"step": about["step"], "processes": about["processes"], **about["more"]}


@contextmanager
def _one_process_is_meant() -> Iterator[None]:
    """Silence the warning of torch that there is one process alone."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield


def _reason(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def _described(module: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Describe what the tensors of a checkpoint belong to, however they are sharded."""
    tensors = (*module.named_parameters(), *module.named_buffers())
    return {
        "tensors": {name: [list(value.shape), str(value.dtype)] for name, value in tensors},
        "optimizer": type(optimizer).__name__,
        "groups": len(optimizer.param_groups),
    }


def _refuse_foreign(path: Path, about: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    advice = "choose another folder for another training, or go back to the model and the optimizer of the old one"
    for name in ("optimizer", "groups"):
        if about[name] != ours[name]:
            raise ForeignFile(f"{path} has {name} {about[name]}, and this training has {ours[name]}; {advice}")
    theirs, mine = about["tensors"], ours["tensors"]
    for name in (*theirs, *mine):
        if theirs.get(name) != mine.get(name):
            before, now = (
                f"{have[0]} of {have[1]}" if have else "nothing" for have in (theirs.get(name), mine.get(name))
            )
            raise ForeignFile(f"{path} belongs to another model: {name!r} is {before} there and {now} here; {advice}")


def _read(path: Path) -> dict[str, Any]:
    try:
        about = json.loads((path / _ABOUT).read_text())
        if not {"format", "step", "processes", "more", "tensors", "optimizer", "groups"} <= set(about):
            raise ValueError("entries are missing")
    except (OSError, ValueError, TypeError) as error:
        raise ForeignFile(f"{path} is no checkpoint of leanbayes.train.save_sharded ({error})") from error
    if about["format"] != _FORMAT:
        raise ForeignFile(f"{path} has format {about['format']}, and this version reads format {_FORMAT}")
    checked: dict[str, Any] = about
    return checked


def _whole_ones(folder: Path) -> list[Path]:
    """Return the checkpoints, oldest first, without those that were being written when a process ended."""
    return sorted(path for path in folder.glob("step-*") if path.is_dir() and path.suffix != ".part")


def _joined() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _is_first() -> bool:
    return not _joined() or torch.distributed.get_rank() == 0


def _number() -> int:
    return torch.distributed.get_world_size() if _joined() else 1


def _wait() -> None:
    if _joined():
        torch.distributed.barrier()
