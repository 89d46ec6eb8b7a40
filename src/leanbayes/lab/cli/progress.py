"""Progress on standard error, so that standard output holds results only: bars in a terminal, else a line a stage.

A terminal shows the whole command with the time that is left, the stage that is under way, and the loss of its last
epoch. Nothing of this stays on the screen when the command ends. Where the output is no terminal, as in a log file,
each stage that has ended is one line.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from leanbayes.lab.cli.lines import print_line

if TYPE_CHECKING:
    from leanbayes.lab.compare import Event
    from leanbayes.train import Epoch

__all__ = ["Bars", "bars"]

T = TypeVar("T")
_PAUSE = 10.0  # seconds between two lines of a log that say how far the work is
_BAR = 10  # characters, so that 40 of 80 are left for words


class Bars:
    """One bar for the whole command, one for the stage that is under way, and the loss of its last epoch.

    Args:
        progress: the bars on the screen, which may be disabled.
        lines: whether each stage that has ended is printed as a line instead.
    """

    def __init__(self, progress: Progress, lines: bool = False) -> None:
        self.progress, self.lines = progress, lines
        self.what = ""
        self.weights: list[float] = []
        self.runs = 0
        self.whole: TaskID | None = None
        self.stage: TaskID | None = None
        self.loss: TaskID | None = None
        self.key: tuple[str, int, str] | None = None
        self.words = ""
        self.since = time.monotonic()
        self.last_shown = -_PAUSE

    def track(self, items: Sequence[T], what: str) -> Iterator[T]:
        """Show a bar while somebody goes through a sequence, and remove it at the end."""
        task = self.progress.add_task(what, total=len(items))
        try:
            for item in items:
                yield item
                self.progress.advance(task)
        finally:
            self.progress.remove_task(task)

    def remark(self, text: str) -> None:
        """Print one line that a user should read before the work begins."""
        self._print(f"leanbayes: note: {text}")

    def tell(self, text: str) -> None:
        """Show how far the work is, in words, in the place of what was told before."""
        if self.lines:
            now = time.monotonic()
            if now - self.last_shown >= _PAUSE:
                self.last_shown = now
                self._print(f"leanbayes: {text}")
            return
        if self.loss is None:
            self.loss = self.progress.add_task("", total=None, words_only=True)
        self.progress.update(self.loss, description=text)

    def begin(self, what: str, total: int, weights: Sequence[float] | None = None) -> None:
        """Show the bar of the whole command, in the place of an earlier one.

        Args:
            what: what is counted, such as "methods".
            total: how many runs there are.
            weights: how long each run takes in some unit, such as epochs; the time that is left follows from it. By
                default all runs take as long.
        """
        self._remove("whole", "stage", "loss")
        self.what, self.runs, self.key = what, 0, None
        self.weights = [1.0] * total if weights is None else [float(weight) for weight in weights]
        self.whole = self.progress.add_task(what, total=sum(self.weights), count=f"0/{len(self.weights)}")
        self.since = time.monotonic()

    def step(self) -> None:
        """Say that one more run of the whole command is over."""
        if self.whole is None or self.runs >= len(self.weights):
            return
        self.runs += 1
        done = sum(self.weights[: self.runs])
        self.progress.update(self.whole, completed=done, count=f"{self.runs}/{len(self.weights)}")

    def __call__(self, event: "Event") -> None:
        """Show how far a stage is; a new stage replaces the bar of the last one."""
        if event.run_done:
            self._remove("stage", "loss")
            self.key = None
            self.step()
            return
        key = (event.method, event.seed, event.stage)
        name = f"{event.method}, seed {event.seed}: {event.stage}"
        if key != self.key:
            self._remove("stage", "loss")
            self.stage = self.progress.add_task(name, total=event.total)
            self.key, self.words = key, ""
        if event.epoch is not None:
            self._advance_whole()
            self.words = _words(event.epoch)
            if self.loss is None:
                self.loss = self.progress.add_task("", total=None, words_only=True)
            self.progress.update(self.loss, description=f"  {self.words}")
        if self.stage is not None:
            self.progress.update(self.stage, completed=event.done)
        if self.lines and event.done >= event.total:
            self._report(name, event.total)

    def _advance_whole(self) -> None:
        """Let an epoch count, but never as much as would end the run: judging it takes time too."""
        if self.whole is None or self.runs >= len(self.weights):
            return
        done = next(task.completed for task in self.progress.tasks if task.id == self.whole)
        end = sum(self.weights[: self.runs + 1])
        if done + 1 < end:
            self.progress.advance(self.whole)

    def _report(self, name: str, total: int) -> None:
        now = time.monotonic()
        of_all = f" ({self.what}: {self.runs} of {len(self.weights)} done)" if len(self.weights) > 1 else ""
        loss = f", {self.words}" if self.words else ""
        self._print(f"leanbayes: {name}, {total} of {total}{loss}, {_seconds(now - self.since)}{of_all}")
        self.since = now

    def _remove(self, *names: str) -> None:
        for name in names:
            task = getattr(self, name)
            if task is not None:
                self.progress.remove_task(task)
                setattr(self, name, None)

    def _print(self, line: str) -> None:
        print_line(self.progress.console, line)


@contextmanager
def bars(hidden: bool) -> Iterator[Bars]:
    """Show progress while the block runs.

    Args:
        hidden: show none, for programs that read the output and for all processes but the first.
    """
    words = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    columns = (
        TextColumn("{task.description}", table_column=words, markup=False),
        _Unless(BarColumn(bar_width=_BAR)),
        _Unless(_Count()),
        _Unless(TimeElapsedColumn()),
        _Unless(TimeRemainingColumn(compact=True)),
        _Unless(TextColumn("left")),
    )
    console = Console(stderr=True)
    watched = console.is_terminal
    with Progress(*columns, console=console, disable=hidden or not watched, transient=True, expand=True) as progress:
        yield Bars(progress, lines=not hidden and not watched)


class _Unless(ProgressColumn):
    """A column that stays empty in a row of words."""

    def __init__(self, column: ProgressColumn) -> None:
        super().__init__()
        self.column = column

    def render(self, task: Task) -> object:  # type: ignore[override]
        return Text("") if task.fields.get("words_only") else self.column(task)


class _Count(ProgressColumn):
    """How many of how many: of runs for the whole command, of steps for a stage."""

    def render(self, task: Task) -> Text:
        return Text(task.fields.get("count") or f"{int(task.completed)}/{int(task.total or 0)}", justify="right")


def _words(epoch: "Epoch") -> str:
    """The NLL of the training examples, which all methods have; the loss of some holds a KL that is far larger."""
    validation = "" if epoch.validation is None else f", validation {epoch.validation:.4g}"
    return f"NLL {epoch.nll:.4g}{validation}"


def _seconds(seconds: float) -> str:
    """Return a duration in words.

    >>> _seconds(3.21), _seconds(75)
    ('3.2 s', '1 min 15 s')
    """
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds // 60)} min {int(seconds % 60)} s"
