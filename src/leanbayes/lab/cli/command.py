"""A command of ``leanbayes``: one record in one file.

A command of ours is found because its file lies in ``lab/cli/commands``. A command of another package is found through
the entry-point group "leanbayes.commands":

    [project.entry-points."leanbayes.commands"]
    greet = "my_package.greet:COMMAND"

Every record is loaded to list the commands, so a module that defines one should import what is slow to import
(matplotlib, data, models) inside the function ``run``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rich.console import Console

from leanbayes._catalogue import Catalogue
from leanbayes.lab.cli.lines import print_line
from leanbayes.lab.cli.progress import Bars

__all__ = ["COMMANDS", "Command", "Result", "Session", "print_line"]

T = TypeVar("T")
Result = dict[str, Any]
"""What a command returns: values that JSON can hold."""


@dataclass(frozen=True)
class Session:
    """What a command gets besides its options.

    Args:
        bars: the progress bars.
        command_line: the command as the user typed it, for records.
    """

    bars: Bars
    command_line: str


def _never(result: Result) -> bool:  # noqa: ARG001
    return False


@dataclass(frozen=True)
class Command(Generic[T]):
    """One command.

    Args:
        name: the word after ``leanbayes``.
        help: one sentence that says what the command does.
        options: a frozen dataclass. Each field is an option (see `leanbayes.lab.recipes.option`) or a positional
            argument (see `leanbayes.lab.cli.argument`); a field whose type is another such dataclass is a section of
            options.
        run: does the work: takes the options and the session, and returns the result.
        show: prints the result for people; with ``--json`` the result itself is printed instead.
        failed: says whether part of the work failed, which makes the exit code 1.
        epilog: returns text that follows the options in the help; None for no such text.
    """

    name: str
    help: str
    options: type[T]
    run: Callable[[T, Session], Result]
    show: Callable[[Console, Result], None]
    failed: Callable[[Result], bool] = _never
    epilog: Callable[[], str] | None = None


COMMANDS: Catalogue[Command[Any]] = Catalogue(
    "command",
    lambda value: value.name if isinstance(value, Command) else None,
    package="leanbayes.lab.cli.commands",
    group="leanbayes.commands",
)
"""Every command by name."""
