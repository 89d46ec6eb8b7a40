"""Bars with the time left, on standard error, so that standard output stays for results."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from leanbayes.lab.compare import Event, is_main_process

__all__ = ["Bars", "bars"]

T = TypeVar("T")


class Bars:
    """One bar for all methods, one for the stage under way."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.whole: TaskID | None = None
        self.stage: TaskID | None = None
        self.key: tuple[str, int, str] | None = None

    def track(self, items: Sequence[T], what: str) -> Iterator[T]:
        """A bar over a sequence."""
        yield from self.progress.track(items, description=what)

    def begin(self, what: str, total: int) -> None:
        """The bar of the whole."""
        self.whole = self.progress.add_task(what, total=total)

    def step(self) -> None:
        """One of the whole is done."""
        if self.whole is not None:
            self.progress.advance(self.whole)

    def __call__(self, event: Event) -> None:
        """A step of a stage."""
        key = (event.method, event.seed, event.stage)
        if key != self.key:
            if self.stage is not None:
                self.progress.remove_task(self.stage)
            self.stage = self.progress.add_task(f"{event.method}, seed {event.seed}: {event.stage}", total=event.total)
            self.key = key
        if self.stage is not None:
            self.progress.update(self.stage, completed=event.done)


@contextmanager
def bars(quiet: bool) -> Iterator[Bars]:
    """Bars while the block runs; none for machines, for other processes, or where nobody sees them."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=quiet or not is_main_process(), transient=True) as progress:
        yield Bars(progress)
