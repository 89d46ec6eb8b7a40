"""What is disturbed, how it may end, and what it leaves: a scenario, of which each training and each command is one."""

import hashlib
import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors

__all__ = ["DONE", "REFUSED", "SOME_FAILED", "Scenario", "check_whole", "state", "whole_state"]

DONE, SOME_FAILED, REFUSED = 0, 1, 2
"""The codes with which a run may end: all is done; a part failed and is recorded; one line says why nothing is done."""

_TIMES = frozenset(
    {"seconds", "train_seconds", "predict_seconds", "finished", "date", "minutes_taken", "minutes_of_jobs"}
)
_COMMITS = frozenset({"commit", "changed_since_commit", "commits_of_jobs"})  # somebody may edit during the long run
_OURS = (".lb", ".safetensors")
_OF_ONE_PROCESS = re.compile(  # names of parts, names of workers, moments and durations, which differ in every run
    r"[0-9a-f]{8}-\d+-[0-9a-f]{8}|[0-9a-f]{16}|\.[0-9a-f]{8}\.part|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?"
    r"|(?<=\"seconds\": )[\d.e-]+"
)


@dataclass(frozen=True)
class Scenario:
    """Work that is killed, and whose writes fail.

    Args:
        name: the name on the command line.
        work: does the work in the current folder, and returns one of the codes above. Before an error it writes one
            line that begins with "leanbayes: " to the standard error.
        prepare: puts what the work needs into an empty folder.
        workers: whether the work starts worker processes.
        warm_up: fills caches of the process from which the runs are forked. It must start no threads.
    """

    name: str
    work: Callable[[], int]
    prepare: Callable[[Path], None] = lambda folder: None
    workers: bool = False
    warm_up: Callable[[], None] = lambda: None


def state(folder: Path) -> dict[str, Any]:
    """Return what a run left: for each file its content without times and commits, or only that it is there."""
    return {
        path.relative_to(folder).as_posix(): _content(path)
        for path in sorted(folder.rglob("*"))
        if not path.name.endswith(".lock")
    }


def whole_state(folder: Path) -> str:
    """Return a text that tells what the folder holds, hidden and unknown files included.

    It has no times, and no names that a process makes by chance: from two folders with the same text, the work goes on
    in the same way.
    """

    def content(name: Path) -> Any:
        hidden = any(part.startswith(".") for part in name.parts)
        if name.suffix == ".db" and not hidden and not list((folder / name).parent.glob(f"{name.name}-*")):
            return _rows_of_database(folder / name)
        if (folder / name).is_file() and (hidden or _content(folder / name) == "a file"):
            return hashlib.sha256((folder / name).read_bytes()).hexdigest()
        return _content(folder / name)

    names = sorted(path.relative_to(folder) for path in folder.rglob("*"))
    return repr([(_OF_ONE_PROCESS.sub("*", str(name)), content(name)) for name in names])


def _rows_of_database(path: Path) -> str:
    """Return all tables of a database that has no journal. One with a journal is told by its bytes."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        return _OF_ONE_PROCESS.sub("*", "\n".join(database.iterdump()))


def check_whole(folder: Path) -> None:
    """Raise if a file with a usual name is not whole. Only below a name that begins with a dot may there be parts."""
    for path in folder.rglob("*"):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
            _content(path)


def _content(path: Path) -> Any:
    if path.is_dir():
        return "a folder"
    if path.suffix in _OURS:
        return _tensors(path)
    if path.suffix == ".json":
        return _without_times(json.loads(path.read_text()))
    return "a file"


def _tensors(path: Path) -> Any:
    with safetensors.safe_open(path, "np") as file:
        header = _without_times(json.loads((file.metadata() or {})["leanbayes"]))
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if "epochs" in tensors:
        tensors["epochs"] = tensors["epochs"][:, :-1]  # the last column holds the seconds
    sums = {name: hashlib.sha256(value.tobytes()).hexdigest() for name, value in tensors.items()}
    return [header, {name: [str(tensors[name].dtype), tensors[name].shape, sums[name]] for name in sorted(tensors)}]


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: _without_times(item) for key, item in value.items() if key not in _TIMES | _COMMITS}
        if value.get("kind") == "tuning":  # a trial that was killed stays in the list, and another takes its place
            kept["trials"] = [trial for trial in kept["trials"] if trial["state"] != "killed"]
        if value.get("kind") == "comparison" and "methods" in value:  # they are in the order in which they were done
            kept["methods"] = sorted(kept["methods"], key=lambda method: str(method["name"]))
        return kept
    return [_without_times(item) for item in value] if isinstance(value, list) else value
