"""An Optuna study in one SQLite file, which several processes may share.

Each trial is done once, and a trial whose process was killed is done again. Reading the file executes and unpickles
nothing: Optuna's relational storage holds numbers, text and JSON, and the TPE sampler stores nothing there. The sampler
is fixed, because the CMA-ES sampler would store a pickle and read it.
"""

import glob
import json
import os
import random
import secrets
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from leanbayes.errors import FileError, ForeignFile, InputError, LeanBayesError, TruncatedFile

__all__ = ["Study", "open_study"]

_KEY = "leanbayes"
_OF_A_QUEUE = "queue"  # the worker of a trial that is the job of a queue
_PATIENCE = 60.0  # seconds, for a reader such as Optuna's dashboard to let go of the file


class Study:
    """A study with slots 0, 1, 2, ... for trials. A slot is free until a trial in it runs, is done or has failed.

    Each process holds a lock on a file of its own while it lives, and the system releases the lock however the process
    ends. So a trial that a killed process left behind differs from one that another process is training.

    The trials of a queue are different: the queue knows who trains them. Only one of its workers at a time opens the
    study, and each slot that is under way is among ``queued``.
    """

    def __init__(self, file: Path, optuna: Any, queued: Collection[int] | None = None) -> None:
        self.file, self.optuna, self.queued = file, optuna, queued
        self.me = secrets.token_hex(8) if queued is None else _OF_A_QUEUE
        self.lock: Any = _file_lock(f"{file}.lock") if queued is None else nullcontext()
        self.study: Any = None

    def claim(self, slots: int, distributions: Mapping[str, Any], seed: int) -> tuple[int, Any] | None:
        """Return a free slot below ``slots`` and a new trial for it; None if no slot is free.

        The state of the sampler is not stored, so each slot has a seed of its own: a study that continues draws the
        same values as one that was never stopped, and two processes never draw the same values.
        """
        with self.alone():
            taken = self._taken()
            slot = next((slot for slot in range(slots) if slot not in taken), None)
            if slot is None:
                return None
            draw = random.Random(f"{seed}/{slot}").getrandbits(32)
            self.study.sampler = self.optuna.samplers.TPESampler(seed=draw)
            trial = self.study.ask(dict(distributions))
            trial.set_user_attr("claim", {"slot": slot, "worker": self.me})
            return slot, trial

    def done(self, trial: Any, value: float, **details: Any) -> None:
        """Store the value of a trial, and details about it."""
        with self.alone():
            trial.set_user_attr("found", details)
            self.study.tell(trial, value)

    def failed(self, trial: Any, reason: str) -> None:
        """Store why a trial could not be trained; it is not tried again."""
        with self.alone():
            trial.set_user_attr("found", {"error": reason})
            self.study.tell(trial, state=self.optuna.trial.TrialState.FAIL)

    def running(self) -> dict[int, Any]:
        """Return the trials that are under way by slot; call it inside `alone`."""
        trials = [trial for trial in self._trials() if self.state(trial) == "running" and "slot" in _claim(trial)]
        return {_claim(trial)["slot"]: self.optuna.trial.Trial(self.study, trial._trial_id) for trial in trials}

    def rows(self) -> list[dict[str, Any]]:
        """Return every trial, by slot; call it inside `alone`."""
        rows = []
        for trial in self._trials():
            details = trial.user_attrs.get("found", {})
            row = {"trial": _claim(trial).get("slot"), "state": self.state(trial), "drawn": trial.params}
            row["value"] = trial.values[0] if row["state"] == "done" else None
            rows.append(row | {name: details.get(name) for name in ("metrics", "seconds", "error")})
        return sorted((row for row in rows if row["trial"] is not None), key=lambda row: row["trial"])

    def state(self, trial: Any) -> str:
        """Return "done", "running", "failed" or "killed", or Optuna's word for a state that other programs have set."""
        if trial.state.name == "FAIL":
            return "failed" if "error" in trial.user_attrs.get("found", {}) else "killed"
        return str({"COMPLETE": "done"}.get(trial.state.name, trial.state.name.lower()))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes out of the study inside the ``with`` block."""
        errors = (OSError, self.optuna.exceptions.OptunaError, import_module("sqlalchemy.exc").SQLAlchemyError)
        try:
            with self.lock:
                yield
        except LeanBayesError:
            raise
        except errors as error:
            raise FileError(
                f"cannot use the study in {self.file}: {_first_line(error)}; give another storage"
            ) from error

    def _taken(self) -> set[int]:
        """The slots that are not free. A running trial whose process is dead is marked as failed and frees its slot."""
        alive, taken = {self.me}, set()
        for lock in self.file.parent.glob(f"{glob.escape(self.file.name)}.*.worker"):
            worker = lock.name.removesuffix(".worker").rpartition(".")[2]
            if worker not in alive and not _is_free(lock):
                alive.add(worker)
        for trial in self._trials():
            claim = _claim(trial)
            lives = claim.get("worker") in alive and (self.queued is None or claim.get("slot") in self.queued)
            if self.state(trial) == "running" and not lives:
                self.study.tell(trial.number, state=self.optuna.trial.TrialState.FAIL)
            elif self.state(trial) != "killed" and "slot" in _claim(trial):
                taken.add(_claim(trial)["slot"])
        return taken

    def _trials(self) -> list[Any]:
        trials: list[Any] = self.study.get_trials(deepcopy=False)
        return trials


@contextmanager
def open_study(
    file: Path, name: str, about: Mapping[str, Any], direction: str, queued: Collection[int] | None = None
) -> Iterator[Study]:
    """Open the study of this name, or make it; refuse a study that is about something else.

    Args:
        file: an SQLite file; it is made, with its folder, if it does not exist.
        name: the name of the study; a file can hold several.
        about: what is tuned, as JSON.
        direction: "minimize" or "maximize".
        queued: the slots that a queue of jobs has under way, if the trials are the jobs of a queue. The caller must
            then keep the other workers of the queue out.
    """
    optuna = _import_optuna()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot use {file}: {error}; give another storage") from error
    study, storage, verbosity = Study(file, optuna, queued), None, optuna.logging.get_verbosity()
    own_lock = None if queued is not None else _file_lock(f"{file}.{study.me}.worker")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with study.alone():
            if own_lock is not None:
                own_lock.acquire()
            _check(file)
            _create(file, optuna)
            try:
                storage = _storage(file, optuna)
            except RuntimeError as error:
                raise FileError(
                    f"{file} was written by another version of Optuna: {_first_line(error)}; give another storage"
                ) from error
            study.study = optuna.create_study(
                storage=storage, study_name=name, direction=direction, load_if_exists=True
            )
            _check_same(file, name, study.study, json.loads(json.dumps(about)))
        yield study
    finally:
        if storage is not None:
            _close(storage)
        if own_lock is not None:
            own_lock.release()
            Path(own_lock.lock_file).unlink(missing_ok=True)
        optuna.logging.set_verbosity(verbosity)


def _create(file: Path, optuna: Any) -> None:
    """Make the file with the tables of Optuna, whole or not at all; call it inside `Study.alone`.

    Optuna makes one table after the other. A process that is killed in between would leave a file with some of them,
    which nobody could use.
    """
    for remains in file.parent.glob(f".{glob.escape(file.name)}.*.part*"):  # of processes that were killed here
        remains.unlink(missing_ok=True)
    if file.exists() and file.stat().st_size:
        return
    new = file.with_name(f".{file.name}.{secrets.token_hex(4)}.part")
    try:
        _close(_storage(new, optuna))
        with new.open("rb+") as written:
            os.fsync(written.fileno())
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)


def _storage(file: Path, optuna: Any) -> Any:
    # The URL only names the dialect, because a path may hold signs that have a meaning in a URL.
    return optuna.storages.RDBStorage("sqlite:///study", engine_kwargs={"creator": partial(_connect, file)})


def _close(storage: Any) -> None:
    storage.remove_session()
    storage.engine.dispose()


def _connect(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(file, timeout=_PATIENCE, check_same_thread=False)


def _claim(trial: Any) -> dict[str, Any]:
    """The slot and the process of a trial; empty if the process was killed while it claimed the slot."""
    claim: dict[str, Any] = trial.user_attrs.get("claim", {})
    return claim


def _import_optuna() -> Any:
    try:
        return import_module("optuna")
    except ImportError as error:
        raise InputError(
            f"tuning needs Optuna, which cannot be imported ({error}); install it: pip install 'leanbayes[tune]'"
        ) from error


def _file_lock(path: str) -> Any:
    return import_module("filelock").FileLock(path)


def _is_free(lock: Path) -> bool:
    """Whether no process holds the lock; a free lock is removed."""
    attempt = _file_lock(str(lock))
    try:
        attempt.acquire(timeout=0)
    except TimeoutError:
        return False
    lock.unlink(missing_ok=True)
    attempt.release()
    return True


def _check(file: Path) -> None:
    """Refuse a file that is not a study, because Optuna would add its tables to any database."""
    if not file.exists() or (file.is_file() and not file.stat().st_size):
        return
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True, timeout=_PATIENCE)) as database:
            (state,) = database.execute("PRAGMA quick_check(1)").fetchone()
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.OperationalError as error:
        raise FileError(f"cannot use {file}: {error}") from error
    except sqlite3.DatabaseError as error:
        raise ForeignFile(f"{file} is no study, or is damaged ({error}); give another storage") from error
    if state != "ok":
        raise TruncatedFile(f"{file} is cut short or damaged ({_first_line(state)}); give another storage")
    if tables and not {"studies", "trials"} <= tables:
        raise ForeignFile(f"{file} is a database of another program; give another storage")


def _check_same(file: Path, name: str, study: Any, about: dict[str, Any]) -> None:
    before = study.user_attrs.get(_KEY)
    if before is None and study.get_trials(deepcopy=False):
        raise ForeignFile(f"the study {name!r} in {file} was made by another program; give another name")
    if before is None:
        study.set_user_attr(_KEY, about)
        return
    old, new = _flat(before), _flat(about)
    differ = [key for key in old | new if old.get(key) != new.get(key)]
    if differ:
        shown = "; ".join(f"{key} was {old.get(key)!r} and is now {new.get(key)!r}" for key in differ[:4])
        more = f"; and {len(differ) - 4} more" if len(differ) > 4 else ""
        raise InputError(f"the study {name!r} in {file} is about something else: {shown}{more}; give another name")


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat |= _flat(item, f"{prefix}.{key}".lstrip("."))
    return flat


def _first_line(error: object) -> str:
    return (str(error).strip().splitlines() or [""])[0]
