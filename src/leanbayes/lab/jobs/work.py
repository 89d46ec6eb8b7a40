"""What a worker does: it takes one job after the other until all are done."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leanbayes.errors import FileError
from leanbayes.lab.jobs.job import Job, Needs, this_machine
from leanbayes.lab.jobs.queue import Claim, Queue, is_full_disk

__all__ = ["Do", "More", "Say", "say_nothing", "work"]

Do = Callable[[Job, Path], dict[str, Any]]
"""Does a job: it writes files to the folder that it is called with, and returns the result as JSON."""

More = Callable[[], bool]
"""Is called when no job is free: it may add jobs, and returns whether there can be more of them later."""

Say = Callable[[str], None]
"""Is called with one line that a user should read."""


def work(
    queue: Queue,
    do: Do,
    *,
    more: More | None = None,
    say: Say | None = None,
    look: Callable[[], None] | None = None,
    machine: Needs | None = None,
) -> None:
    """Do jobs of a queue until all of them are done, by this worker or by others.

    An error of a job is its outcome, and the worker goes on. If the disk is full, or the user interrupts the worker,
    it gives its job back and ends.

    Args:
        queue: the queue. The process must be `living` in it.
        do: does one job.
        more: adds jobs, if not all of them are known from the beginning.
        say: receives what a user should read.
        look: is called after each job, and each time that the worker has looked for one.
        machine: what this machine has; by default the worker looks.
    """
    machine = machine or this_machine()
    say = say or say_nothing
    warned = False
    while True:
        if look is not None:
            look()
        try:
            claim = queue.claim(machine)
        except OSError as problem:
            if not is_full_disk(problem):
                raise
            raise FileError(
                f"the disk of this worker is full, so it takes no more jobs and ends; free some space, and start it "
                f"again ({problem})"
            ) from problem
        if claim is not None:
            _attempt(claim, do, say)
            continue
        later = more is not None and more()
        if not queue.is_current() or (queue.is_complete() and not later):
            return
        large = queue.too_large(machine)
        if large and not warned:
            say(f"{len(large)} jobs need more than this machine has, such as {large[0].needs}; others must do them")
            warned = True
        time.sleep(queue.leases.patience.look)


def _attempt(claim: Claim, do: Do, say: Say) -> None:
    key = claim.job.key
    result: dict[str, Any] | None = None
    error: str | None = None
    try:
        try:
            result = do(claim.job, claim.folder)
            json.dumps(result, allow_nan=False)  # what JSON cannot hold is an error of the job
        except Exception as problem:
            if is_full_disk(problem):
                raise
            result, error = None, f"{type(problem).__name__}: {' '.join(str(problem).split())}"
        if not claim.publish(result, error):
            say(f"another worker has taken over the job {key}, because this one was silent; its result is discarded")
    except Exception as problem:
        claim.give_back()
        if is_full_disk(problem):
            raise FileError(
                f"the disk of this worker is full, so it gave the job {key} back and ends; other workers can do it; "
                f"free some space, and start this worker again ({problem})"
            ) from problem
        raise
    except BaseException:
        claim.give_back()
        raise


def say_nothing(line: str) -> None:
    """Say nothing to anybody."""
