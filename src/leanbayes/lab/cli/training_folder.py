"""The folder that ``leanbayes train`` writes to: one training at a time, and no model is overwritten by accident."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from leanbayes._files import discard, sweep, write_text
from leanbayes.errors import InputError, LeanBayesError
from leanbayes.lab.compare import is_main_process
from leanbayes.lab.processes import only_user_of
from leanbayes.storage import about as notes_of

__all__ = ["training_folder"]


@contextmanager
def training_folder(folder: Path, about: Mapping[str, Any], overwrite: bool) -> Iterator[Path]:
    """Give the folder of checkpoints to one training, and remove it when the training is complete.

    A training that was killed continues from its checkpoints, and a training that was complete may be repeated.

    Args:
        folder: where ``model.lb`` goes.
        about: what is trained, with everything that shapes the model; `leanbayes.save` keeps it beside the model.
        overwrite: whether the model and the checkpoints of another training may be replaced.

    Raises:
        InputError: the folder holds the model or the checkpoints of another training.
        FileError: another process trains in this folder.
    """
    checkpoints = folder / "checkpoints"
    if not is_main_process():
        yield checkpoints
        return
    about = json.loads(json.dumps(about))
    with only_user_of(folder):
        sweep(folder, alone=True)
        sweep(checkpoints, alone=True)
        if not overwrite:
            _check_model(folder / "model.lb", about)
        mark = checkpoints / "training.json"
        if checkpoints.exists() and _read(mark) != about:
            if not overwrite and any(not path.name.startswith(".") for path in checkpoints.iterdir()):
                raise InputError(
                    f"{checkpoints} holds the checkpoints of another training, which was not finished; give another "
                    "folder, or --overwrite to remove them"
                )
            discard(checkpoints)
        checkpoints.mkdir(exist_ok=True)
        write_text(mark, json.dumps(about))
        yield checkpoints
        discard(checkpoints)


def _check_model(file: Path, about: Mapping[str, Any]) -> None:
    if not file.exists():
        return
    try:
        same = notes_of(file) == about
    except LeanBayesError:
        same = False
    if not same:
        raise InputError(
            f"{file} is the model of another training, or of other data; give another folder, or --overwrite to "
            "replace it"
        )


def _read(mark: Path) -> Any:
    try:
        return json.loads(mark.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
