"""Progress bars with the remaining time; they go to standard error, so that standard output holds results only."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

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

if TYPE_CHECKING:
    from leanbayes.lab.compare import Event

__all__ = ["Bars", "bars"]

T = TypeVar("T")


class Bars:
    """One bar for the whole command, and one for the stage that is under way."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.whole: TaskID | None = None
        self.stage: TaskID | None = None
        self.key: tuple[str, int, str] | None = None

    def track(self, items: Sequence[T], what: str) -> Iterator[T]:
        """Show a bar while somebody goes through a sequence."""
        yield from self.progress.track(items, description=what)

    def remark(self, text: str) -> None:
        """Print one line that a user should read before the work begins."""
        self.progress.console.print(f"leanbayes: note: {text}", markup=False, highlight=False, soft_wrap=True)

    def begin(self, what: str, total: int) -> None:
        """Show the bar of the whole command, which has ``total`` steps."""
        self.whole = self.progress.add_task(what, total=total)

    def step(self) -> None:
        """Advance the bar of the whole command by one step."""
        if self.whole is not None:
            self.progress.advance(self.whole)

    def __call__(self, event: "Event") -> None:
        """Show how far a stage is; a new stage replaces the bar of the last one."""
        key = (event.method, event.seed, event.stage)
        if key != self.key:
            if self.stage is not None:
                self.progress.remove_task(self.stage)
            self.stage = self.progress.add_task(f"{event.method}, seed {event.seed}: {event.stage}", total=event.total)
            self.key = key
        if self.stage is not None:
            self.progress.update(self.stage, completed=event.done)


@contextmanager
def bars(hidden: bool) -> Iterator[Bars]:
    """Show bars while the block runs.

    Args:
        hidden: show none, for programs that read the output and for all processes but the first.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    hidden = hidden or not console.is_terminal  # where nobody watches, an empty line is all that would remain of them
    with Progress(*columns, console=console, disable=hidden, transient=True) as progress:
        yield Bars(progress)
