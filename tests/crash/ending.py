"""The last line of the output: what was done, and what ended the harness, whatever that was.

A run that ends without its last line proves nothing, and nobody can say why it ended. One cause is hard to guess: if a
job is stopped by SIGSTOP and the shell that started it ends, then bash sends SIGTERM to the job, or the kernel SIGHUP.
"""

import json
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["end_quietly_by_signals", "last_line", "times", "wait_and_tell"]

ALL_DONE = "all was done"
_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGXCPU)


class _Signal(BaseException):
    """A signal that asks this process to end."""


def times(started: float) -> dict[str, float]:
    """Return the minutes that have passed, and those of one core that were used."""
    used = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {"minutes": round((time.monotonic() - started) / 60, 1), "core_minutes": round(used / 60, 2)}


@contextmanager
def last_line(report: Any, started: float) -> Iterator[None]:
    """Print the counts and what ended the block: its end, an error, or a signal, which then ends the process.

    A signal that is ignored, as SIGHUP is under ``nohup``, stays ignored.
    """

    def end(number: int, frame: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)  # the others must not cut off the last line
        raise _Signal(signal.Signals(number).name)

    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end)
    ended = ALL_DONE
    try:
        yield
    except _Signal as received:
        ended = f"{received} ended it"
    except BaseException as error:
        traceback.print_exc()
        ended = f"{type(error).__name__} ended it: {error}"
    print(json.dumps(vars(report) | times(started) | {"ended": ended}), flush=True)
    if ended != ALL_DONE or report.errors:
        raise SystemExit(1)


def end_quietly_by_signals() -> None:
    """Let signals end this process at once, which is a run and not the harness."""
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def wait_and_tell(process: "subprocess.Popen[bytes]") -> int:
    """Wait for the harness, hand signals on to it, and print its last line if it could not, as after SIGKILL."""
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: process.send_signal(number))
    code = process.wait()
    if code < 0:
        name = signal.Signals(-code).name
        sys.stderr.write(f"{name} ended the harness. If nobody sent it, the machine may have been out of memory.\n")
        print(json.dumps({"errors": [], "ended": f"{name} ended it"}), flush=True)
        return 1
    return code
