"""A crew has all jobs of a queue done by its workers, and one process collects the results."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from leanbayes.errors import LeanBayesError
from leanbayes.lab.jobs.executor import Order, Plan, Workers
from leanbayes.lab.jobs.job import Needs
from leanbayes.lab.jobs.leases import Patience
from leanbayes.lab.jobs.queue import Queue
from leanbayes.lab.jobs.work import Do, More, Say, say_nothing, work

__all__ = ["Crew", "crew_of"]

_MOMENT = 5.0  # seconds
_MANY = 2**31  # jobs, if nobody knows yet how many there will be

OnDone = Callable[[set[str]], None]
"""Is called with the keys of jobs that have been done since the last call."""


@dataclass(frozen=True)
class Crew:
    """Those who do the jobs of a command.

    Args:
        plan: where they run.
        command: the words of the command that a worker runs.
        say: receives lines that a user should read.
        patience: how soon a silent worker counts as dead.
    """

    plan: Plan
    command: Sequence[str] = ()
    say: Say = say_nothing
    patience: Patience = field(default_factory=Patience)

    @property
    def needs(self) -> Needs:
        """What the user has stated that every job needs."""
        return self.plan.needs

    @property
    def is_worker(self) -> bool:
        """Whether another process has started this one, and collects the results."""
        return self.plan.executor.name == "worker"

    @contextmanager
    def working(self, queue: Queue) -> Iterator[None]:
        """Show other workers of the queue that this process lives."""
        with queue.leases.living():
            yield

    @contextmanager
    def collecting(
        self, queue: Queue, do: Do, *, more: More | None = None, on_done: OnDone | None = None
    ) -> Iterator[bool]:
        """Have all jobs done, and let one process collect the results. It must be `working`.

        The block runs in one process at a time. It gets True if it is the first, which must collect, and after which
        the queue is removed. It gets False if another process has collected.

        Raises:
            SystemExit: this process was started as a worker, and no job is left.
        """
        watch = _Watch(queue, on_done)
        if self.plan.executor.start is None:
            work(queue, do, more=more, say=self.say, look=watch)
            if self.is_worker:
                raise SystemExit(0)  # the process that started this one goes on
        else:
            self._have_done(queue, more, watch)
        watch()
        with queue.alone("collect"):
            is_first = queue.is_current()
            yield is_first
            if is_first and queue.is_current():  # not if this process was stopped here, and another was quicker
                queue.remove()

    def _have_done(self, queue: Queue, more: More | None, watch: "_Watch") -> None:
        start = self.plan.executor.start
        assert start is not None
        later = more is not None and more()
        jobs = queue.jobs()
        waiting = len(jobs.keys() - queue.done())
        if not waiting and not later:
            return
        needs = self.needs
        for job in jobs.values():
            needs = needs.both(job.needs)
        logs = queue.folder / "logs"
        logs.mkdir(exist_ok=True)
        count = waiting if more is None else _MANY
        workers = start(Order(self.command, self.plan.workers, count, needs, logs, self.plan.options))
        try:
            while True:
                living = workers.living()
                watch()
                later = more is not None and more()
                if not queue.is_current() or (queue.is_complete() and not later):
                    _let_end(workers)
                    return
                if not living:
                    self._give_up(queue, workers)
                time.sleep(self.patience.look)
        finally:
            workers.stop()

    def _give_up(self, queue: Queue, workers: Workers) -> None:
        left = len(queue.jobs().keys() - queue.done())
        raise LeanBayesError(
            f"all workers have ended, and {left} jobs are left: {workers.last_words()}; run the same command again to "
            "continue"
        )


def _let_end(workers: Workers) -> None:
    """Wait a moment for workers that notice by themselves that no job is left."""
    end = time.monotonic() + _MOMENT
    while workers.living() and time.monotonic() < end:
        time.sleep(0.1)


class _Watch:
    """Tells somebody which jobs have been done since the last look."""

    def __init__(self, queue: Queue, on_done: OnDone | None) -> None:
        self.queue, self.on_done = queue, on_done
        self.known: set[str] = set()

    def __call__(self) -> None:
        if self.on_done is None:
            return
        new = (self.queue.done() - self.known) & self.queue.jobs().keys()
        if new:
            self.known |= new
            self.on_done(new)


def crew_of(plan: Plan, words: Sequence[str], say: Say) -> Crew | None:
    """Return the crew of a command; None if this process does all jobs itself, without a queue.

    Args:
        plan: what ``--executor`` says.
        words: the words of the command after ``leanbayes``.
        say: receives lines that a user should read.
    """
    if plan.is_plain:
        return None
    kept: list[str] = []
    for word, before in zip(words, ["", *words], strict=False):
        if word != "--executor" and before != "--executor" and not word.startswith("--executor="):
            kept.append(word)
    command = [sys.executable, "-m", "leanbayes.lab.cli", *kept, "--executor", "worker", "--quiet"]
    return Crew(plan, command, say)
