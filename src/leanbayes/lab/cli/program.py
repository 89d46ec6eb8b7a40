"""The program ``leanbayes``: it finds the command, reads its options, runs it and shows what it returns."""

import json
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from leanbayes.errors import LeanBayesError, UnknownName
from leanbayes.lab.cli.command import COMMANDS, Command, Session
from leanbayes.lab.cli.lines import print_line
from leanbayes.lab.cli.parser import in_shell_words, option_names, parse_arguments
from leanbayes.lab.cli.progress import bars
from leanbayes_cli import overview

__all__ = ["DONE", "INTERRUPTED", "PARTLY_FAILED", "REFUSED", "main"]

DONE, PARTLY_FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: the words after ``leanbayes``; by default those of the running process.

    Returns:
        The exit code: 0 if all is done; 1 if a method or a study failed and the others are done; 2 if the input was
        bad, which one line on standard error explains; 130 if the user interrupted the command.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    names: Sequence[str] = ()
    try:
        if words[:1] in (["-h"], ["--help"]):
            sys.stdout.write(_overview())
            return DONE
        command = _command_named(words[:1])
        names = option_names(command)
        return _run(command, words)
    except BrokenPipeError:  # the reader of our output, such as head, has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except (LeanBayesError, OSError) as error:
        _complain(in_shell_words(" ".join(str(error).split()), names))
        return REFUSED
    except SystemExit as end:  # the parser has printed the help of the command
        return int(end.code or DONE)
    except KeyboardInterrupt:
        _complain("interrupted; run the same command again to continue")
        return INTERRUPTED


def _command_named(words: list[str]) -> Command[Any]:
    if not words or words[0].startswith("-"):
        got = f"got {words[0]}" if words else "got none"
        raise UnknownName(f"a command must come first, {got}; choose from {', '.join(COMMANDS)}")
    return COMMANDS.named(words[0])


def _run(command: Command[Any], words: list[str]) -> int:
    options, output = parse_arguments(command, words[1:])

    from leanbayes.lab.compare import is_main_process  # slow to import, and not needed for help

    with bars(hidden=output.json or output.quiet or not is_main_process()) as progress:
        result = command.run(options, Session(progress, shlex.join(["leanbayes", *words])))
    if is_main_process():
        if output.json:
            sys.stdout.write(json.dumps(result) + "\n")
        else:
            command.show(_console(), result)
    return PARTLY_FAILED if command.failed(result) else DONE


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=200)  # a file or a pipe has no width


def _complain(message: str) -> None:
    print_line(Console(stderr=True), f"leanbayes: {message}")


def _overview() -> str:
    return overview({name: command.help for name, command in COMMANDS.items()})
