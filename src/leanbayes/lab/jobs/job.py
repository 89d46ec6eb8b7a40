"""A job: a piece of work that one process does, what it needs, and what came of it."""

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from leanbayes.errors import ForeignFile, InputError

__all__ = ["Job", "Needs", "Outcome", "this_machine"]

_KEY = re.compile(r"[\w=+-][\w=+.-]{0,119}")


@dataclass(frozen=True)
class Needs:
    """What a job needs of the machine that does it.

    Args:
        cores: how many cores it keeps busy. With fewer it is slower, so a small machine may do it, too.
        memory: how many gigabytes (10⁹ bytes) of memory it takes; 0 if nobody has stated it.
        gpus: how many GPUs it takes.
    """

    cores: int = 1
    memory: float = 0.0
    gpus: int = 0

    def __post_init__(self) -> None:
        if self.cores < 1 or not 0 <= self.memory < float("inf") or self.gpus < 0:
            raise InputError(
                f"a job needs at least 1 core and no negative memory or GPUs, got cores={self.cores}, "
                f"memory={self.memory}, gpus={self.gpus}"
            )

    def fits(self, machine: "Needs") -> bool:
        """Return whether a machine that has ``machine`` can do such a job."""
        return self.memory <= machine.memory and self.gpus <= machine.gpus

    def both(self, other: "Needs") -> "Needs":
        """Return what suffices for either of two jobs.

        >>> Needs(cores=2).both(Needs(gpus=1))
        Needs(cores=2, memory=0.0, gpus=1)
        """
        return Needs(max(self.cores, other.cores), max(self.memory, other.memory), max(self.gpus, other.gpus))

    def __str__(self) -> str:
        parts = [f"{self.cores} core{'s' if self.cores > 1 else ''}"]
        parts += [f"{self.memory:g} GB of memory"] if self.memory else []
        parts += [f"{self.gpus} GPU{'s' if self.gpus > 1 else ''}"] if self.gpus else []
        return ", ".join(parts)


def this_machine() -> Needs:
    """Return what this machine has."""
    import torch

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9 if hasattr(os, "sysconf") else float(2**20)
    return Needs(max(1, os.cpu_count() or 1), memory, torch.cuda.device_count())


@dataclass(frozen=True)
class Job:
    """A piece of work.

    Args:
        key: its name: letters, digits and ``_=+.-``, at most 120 of them. A queue has one job of a name.
        needs: what it needs.
        payload: what the worker must know beyond the key, as JSON.
    """

    key: str
    needs: Needs = field(default_factory=Needs)
    payload: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _KEY.fullmatch(self.key):
            raise InputError(f"the key of a job has letters, digits and _=+.- only, at most 120, got {self.key!r}")

    def record(self) -> dict[str, Any]:
        """Return the job as JSON."""
        return {"key": self.key, "needs": asdict(self.needs), "payload": dict(self.payload)}

    @classmethod
    def of(cls, record: Any, path: Path) -> "Job":
        """Build a job from what `record` returned; ``path`` is the file that it comes from."""
        try:
            return cls(str(record["key"]), Needs(**record["needs"]), dict(record["payload"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ForeignFile(
                f"{path} is no list of jobs, or is damaged; remove the folder {path.parents[1]}"
            ) from error


@dataclass(frozen=True)
class Outcome:
    """What came of a job.

    Args:
        key: the key of the job.
        result: what the work returned, as JSON; None if it failed.
        error: why it failed, in one line; None if it did not.
        seconds: how long it took.
        processor_seconds: how much processor time it took, in all threads.
        memory: the largest memory of the worker's process until the end of the job, in gigabytes.
        attempts: how many workers have begun it.
        host: the name of the machine that did it.
        worker: the name of the worker that did it.
        needs: what the job had stated that it needs.
        finished: when it was finished, by the clock of that machine.
    """

    key: str
    result: dict[str, Any] | None
    error: str | None
    seconds: float
    processor_seconds: float
    memory: float
    attempts: int
    host: str
    worker: str
    needs: dict[str, Any]
    finished: str

    @classmethod
    def of(cls, record: Any, path: Path) -> "Outcome":
        """Build an outcome from JSON; ``path`` is the file that it comes from."""
        try:
            outcome = cls(**record)
            right = isinstance(outcome.result, dict | None) and isinstance(outcome.error, str | None)
            if not right or (outcome.result is None) == (outcome.error is None):
                raise TypeError(path)
        except TypeError as error:
            raise ForeignFile(
                f"{path} is no outcome of a job, or is damaged; remove its folder to do it again"
            ) from error
        return outcome

    def summary(self) -> dict[str, Any]:
        """Return everything but the result, for records."""
        return {name: value for name, value in asdict(self).items() if name != "result"}
