"""The control block of ``disturb.c``: which call that changes a file fails, or is the last one of a process."""

import ctypes
import errno
import mmap
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.crash.ending import wait_and_tell

__all__ = ["KINDS", "Control", "Disturbance", "start_again_under_control"]

KINDS = ("open", "write", "sync", "rename", "mkdir", "remove", "mode", "truncate")
"""What a call that changes a file does, in the order of ``disturb.c``."""

_VARIABLE = "LEANBAYES_CRASH_CONTROL"


@dataclass(frozen=True)
class Disturbance:
    """What happens to one run.

    Args:
        kill_after: kill it after this many seconds.
        kill_at: kill it just before the change of a file with this number, from 1.
        group: kill its workers at the same moment. Otherwise the workers must notice, and end by themselves.
        fail_at: let the change with this number fail.
        error: the error of that failure. After ENOSPC everything that needs space on the disk fails, too.
    """

    kill_after: float | None = None
    kill_at: int | None = None
    group: bool = True
    fail_at: int | None = None
    error: int = errno.EIO

    def kills(self) -> bool:
        """Whether it is a kill."""
        return self.kill_after is not None or self.kill_at is not None

    def __str__(self) -> str:
        if self.fail_at is not None:
            return f"{errno.errorcode[self.error]} at change {self.fail_at}"
        moment = f"at change {self.kill_at}" if self.kill_at is not None else f"after {self.kill_after:.3f} s"
        return f"a kill {moment}" + ("" if self.group else " of the first process alone")


class _Block(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("armed", "number", "kill_at", "victim", "fail_at", "error", "full")),
        ("happened", ctypes.c_int64),
        ("kinds", ctypes.c_int64 * len(KINDS)),
        ("top", ctypes.c_char * 4096),
    )


class Control:
    """The control block, which this process, its forks and their workers share."""

    def __init__(self) -> None:
        with Path(os.environ[_VARIABLE]).open("r+b") as file:
            self._block = _Block.from_buffer(mmap.mmap(file.fileno(), ctypes.sizeof(_Block)))

    @contextmanager
    def armed(self, top: Path, disturbance: Disturbance | None) -> Iterator[None]:
        """Count the changes of files below a folder, by any process, and disturb the one that is asked for."""
        block = self._block
        ctypes.memset(ctypes.addressof(block), 0, ctypes.sizeof(_Block))
        block.top = os.fsencode(top.resolve())
        if disturbance is not None:
            block.kill_at, block.fail_at = disturbance.kill_at or 0, disturbance.fail_at or 0
            block.error = disturbance.error
        block.armed = 1
        try:
            yield
        finally:
            block.armed = 0

    def aim(self, process: int, group: bool) -> None:
        """Say which process is killed at ``kill_at``, alone or with all processes of its group."""
        self._block.victim = -process if group else process

    @property
    def changes(self) -> int:
        """How many times a file was changed since the block was armed."""
        return int(self._block.number)

    @property
    def happened(self) -> bool:
        """Whether the change that was to be disturbed has come."""
        return bool(self._block.happened)

    def kinds(self) -> dict[str, int]:
        """How many changes of each kind there were."""
        return {kind: number for kind, number in zip(KINDS, self._block.kinds, strict=True) if number}


def start_again_under_control(module: str, arguments: list[str]) -> None:
    """Start this program again with ``disturb.c`` loaded, unless it is loaded, and end with the code of that process.

    One thread of OpenMP is set as well, because a process with threads must not fork.
    """
    if _VARIABLE in os.environ:
        return
    with tempfile.TemporaryDirectory() as name:
        library, block = Path(name, "disturb.so"), Path(name, "control")
        source = Path(__file__).with_name("disturb.c")
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
        block.write_bytes(bytes(ctypes.sizeof(_Block)))
        environment = os.environ | {"LD_PRELOAD": str(library), _VARIABLE: str(block), "OMP_NUM_THREADS": "1"}
        code = wait_and_tell(subprocess.Popen([sys.executable, "-m", module, *arguments], env=environment))
    raise SystemExit(code)
