"""Executors: where the workers of a queue run. An executor is one record in one file, and starts copies of a command.

Every worker runs the command that the user typed, with ``--executor worker`` in the place of the user's executor. So
nothing but words travels to another machine. All workers find their jobs in the folder that they share.

An executor of ours is found because its file lies in ``lab/jobs/executors``. An executor of another package is found
through the entry-point group "leanbayes.executors".
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from leanbayes._catalogue import Catalogue
from leanbayes.errors import InputError, MissingPackage, UnknownName
from leanbayes.lab.jobs.job import Needs

__all__ = ["EXECUTORS", "Executor", "Order", "Plan", "Workers", "cluster_package", "plan_of"]

_OF_ALL = ("workers", "cores", "memory", "gpus")


class Workers(Protocol):
    """Workers that an executor has started."""

    def living(self) -> int:
        """Return how many of them live or wait for a machine."""

    def last_words(self) -> str:
        """Return what one of those that ended in an error said last."""

    def stop(self) -> None:
        """End those that still live."""


def cluster_package(name: str, executor: str) -> Any:
    """Import the package that an executor needs, or say how to install it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingPackage.of(f"--executor {executor}", name, "cluster") from error


@dataclass(frozen=True)
class Order:
    """What an executor is asked to start.

    Args:
        command: the words of the command that each worker runs.
        workers: how many workers; None lets the executor choose.
        jobs: how many jobs there are.
        needs: what each worker needs.
        logs: the folder for what the workers print.
        options: the options of the executor that the user has given.
    """

    command: Sequence[str]
    workers: int | None
    jobs: int
    needs: Needs
    logs: Path
    options: Mapping[str, str]


@dataclass(frozen=True)
class Executor:
    """One kind of executor.

    Args:
        name: the word before the colon of ``--executor``.
        start: starts workers. None if this process is the worker.
        takes: the names of its own options, beside workers, cores, memory and gpus.
        first: the option that a value without a name is for.
        check: raises an error if a package is missing, before any data are read.
    """

    name: str
    start: Callable[[Order], Workers] | None
    takes: tuple[str, ...] = ()
    first: str = "workers"
    check: Callable[[], Any] = field(default=lambda: None)


EXECUTORS: Catalogue[Executor] = Catalogue(
    "executor",
    lambda value: value.name if isinstance(value, Executor) else None,
    package="leanbayes.lab.jobs.executors",
    group="leanbayes.executors",
)
"""Every executor by name."""


@dataclass(frozen=True)
class Plan:
    """Where the jobs of a command run.

    Args:
        executor: starts the workers.
        workers: how many workers; None lets the executor choose.
        needs: what the user has stated that every job needs.
        options: the other options of the executor.
    """

    executor: Executor
    workers: int | None
    needs: Needs
    options: Mapping[str, str]

    @property
    def is_plain(self) -> bool:
        """Whether this process does all jobs itself, without a queue."""
        return self.executor.name == "local" and self.workers is None


def plan_of(text: str) -> Plan:
    """Read the value of ``--executor``, such as ``local:4`` or ``slurm:partition=gpu,gpus=1``.

    >>> plan_of("local:4").workers
    4
    >>> plan_of("shared:gpus=1").needs.gpus
    1
    """
    name, _, rest = text.partition(":")
    executor = EXECUTORS.named(name)
    options: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            key, value = executor.first, part
        if key not in (*_OF_ALL, *executor.takes):
            raise UnknownName.of(f"option of the executor {name}", key, (*_OF_ALL, *executor.takes))
        if key in options:
            raise InputError(f"--executor {text} gives {key} twice")
        options[key] = value
    numbers = {key: _number(text, key, options.pop(key)) for key in _OF_ALL if key in options}
    workers = numbers.pop("workers", None)
    if workers is not None and (workers < 1 or workers != int(workers)):
        raise InputError(f"--executor {text} must have a whole number of workers from 1 on")
    memory = float(numbers.pop("memory", 0.0))
    needs = Needs(**{key: int(value) for key, value in numbers.items()}, memory=memory)
    executor.check()
    return Plan(executor, None if workers is None else int(workers), needs, options)


def _number(text: str, key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        raise InputError(f"--executor {text}: {key} must be a number, got {value!r}") from None
    if not 0 <= number < 1e6 or (key != "memory" and number != int(number)):
        raise InputError(f"--executor {text}: {key} must be a whole number from 0 on, got {value!r}")
    return number
