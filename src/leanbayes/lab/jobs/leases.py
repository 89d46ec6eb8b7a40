"""Leases: which process does which job, among processes that share nothing but a folder.

    workers/<worker>            a counter that a worker raises about once a second while it lives
    leases/<key>.<generation>   who does a job, or that its worker gave it back. The highest generation counts

A file of a generation is created exclusively and is never removed, so one process alone is ever its holder. A worker
whose counter stands still has died, or is stopped, or cannot reach the folder. Another process then takes the next
generation. It judges the counter by its own monotonic clock: how long it has itself looked at a counter that did not
change. No two clocks are ever compared, so clocks may disagree. A process that was itself stopped does not count that
time, because a single look counts for a fifth of the patience at most.

On the machine of a worker, the system knows at once whether its process has ended.
"""

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from leanbayes.errors import FileError

__all__ = ["PARENT", "Lease", "Leases", "Patience"]

PARENT = "LEANBAYES_PARENT"
"""The environment variable that tells a worker the number of the process with which it must end."""

_FREE = b"free"
_LOOKS = 5  # a counter is seen to stand still at least so many times


@dataclass(frozen=True)
class Patience:
    """How often workers show that they live, and how soon others believe that one has died.

    Args:
        beat: the seconds between two changes of a worker's counter.
        silence: for how many seconds a counter must stand still until another worker takes the job over.
        look: how many seconds a worker without a job waits before it looks again.
        ask_system: whether the end of a process on the same machine counts at once.
    """

    beat: float = 1.0
    silence: float = 30.0
    look: float = 0.3
    ask_system: bool = True


@dataclass(frozen=True)
class Lease:
    """A generation of a key; the generations count from 1."""

    key: str
    generation: int

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.key}.{self.generation}"

    @property
    def next(self) -> "Lease":
        """The next generation."""
        return Lease(self.key, self.generation + 1)


class Leases:
    """The leases in a folder, seen by one process, which is a worker while `living` is open.

    Args:
        folder: the folder, which holds the folders ``leases`` and ``workers``.
        patience: how soon a silent worker counts as dead.
    """

    def __init__(self, folder: Path, patience: Patience) -> None:
        self.folder, self.patience = folder, patience
        self.worker = f"{_plain(socket.gethostname())}-{os.getpid()}-{secrets.token_hex(4)}"
        self._seen: dict[str, tuple[str, float, float]] = {}  # counter, time of the last look, seconds of standstill

    @contextmanager
    def living(self) -> Iterator[None]:
        """Show others that this process lives, inside the ``with`` block."""
        stop = threading.Event()
        pulse = threading.Thread(target=self._beat, args=(stop,), daemon=True, name="leanbayes-heartbeat")
        self._raise_counter(0)
        pulse.start()
        try:
            yield
        finally:
            stop.set()
            pulse.join()
            with suppress(OSError):
                self._counter_file(self.worker).unlink()

    def newest(self) -> dict[str, Lease]:
        """Return the newest generation of each key that was ever leased."""
        newest: dict[str, Lease] = {}
        try:
            names = os.listdir(self.folder / "leases")  # noqa: PTH208  (many names, and no paths are needed)
        except FileNotFoundError:
            names = []  # the queue is finished and gone
        for name in names:
            key, _, number = name.rpartition(".")
            if key and number.isdigit() and (key not in newest or newest[key].generation < int(number)):
                newest[key] = Lease(key, int(number))
        return newest

    def take(self, lease: Lease) -> bool:
        """Become the holder of a generation; False if another process has it, or the queue is finished and gone."""
        try:
            file = os.open(self._file(lease), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except (FileExistsError, FileNotFoundError):
            return False
        try:
            os.write(file, json.dumps({"worker": self.worker} | _process()).encode())
        finally:
            os.close(file)
        return True

    def give_back(self, lease: Lease) -> None:
        """Let others take the next generation at once. It writes in place, which needs no space on the disk."""
        with suppress(OSError):  # if it fails, others notice when this process ends
            file = os.open(self._file(lease), os.O_WRONLY)
            try:
                os.write(file, _FREE)
            finally:
                os.close(file)

    def is_free(self, lease: Lease) -> bool:
        """Return whether the holder has given a lease back."""
        try:
            return self._file(lease).read_bytes().startswith(_FREE)
        except OSError:
            return False

    def is_mine(self, lease: Lease) -> bool:
        """Return whether the lease, which this process took, is still the newest one."""
        return self._file(lease).exists() and not self._file(lease.next).exists()

    def deaths(self, lease: Lease) -> int:
        """Return how many earlier holders did not give the key back."""
        earlier = (Lease(lease.key, generation) for generation in range(1, lease.generation))
        return sum(not self.is_free(one) for one in earlier)

    def is_silent(self, lease: Lease) -> bool:
        """Return whether the holder of a lease has ended, or has been silent for longer than the patience allows."""
        holder = self._holder(lease)
        if holder.get("worker") == self.worker:
            return False
        if self.patience.ask_system and _has_ended(holder):
            return True
        counter = self._counter(str(holder.get("worker", "")))
        now = time.monotonic()
        before, last_look, still = self._seen.get(lease.name, (None, now, 0.0))
        if counter != before:
            self._seen[lease.name] = (counter, now, 0.0)
            return False
        still += min(now - last_look, self.patience.silence / _LOOKS)
        self._seen[lease.name] = (counter, now, still)
        return still >= self.patience.silence

    @contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """Keep the other workers out of the ``with`` block of the same name. Whoever dies in it is replaced.

        A queue that is finished and gone keeps nobody out.
        """
        key = f"@{name}"
        while True:
            if not (self.folder / "leases").is_dir():
                last = Lease(key, 0)
                break
            last = self.newest().get(key, Lease(key, 0))
            ready = last.generation == 0 or self.is_free(last) or self.is_silent(last)
            if ready and self.take(last.next):
                break
            time.sleep(min(self.patience.look, 0.1))
        try:
            yield
        finally:
            self.give_back(last.next)

    def _holder(self, lease: Lease) -> dict[str, Any]:
        """Who holds a lease; empty if its worker died before it could say so, or has given it back."""
        try:
            holder = json.loads(self._file(lease).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return holder if isinstance(holder, dict) else {}

    def _beat(self, stop: threading.Event) -> None:
        parent, count = os.environ.get(PARENT), 0
        while not stop.wait(self.patience.beat):
            count += 1
            if parent is not None and str(os.getppid()) != parent:
                os._exit(1)  # nobody waits for this worker any more
            self._raise_counter(count)

    def _raise_counter(self, count: int) -> None:
        """Write the counter over the last one, in place: this works on a full disk, too."""
        try:
            file = os.open(self._counter_file(self.worker), os.O_CREAT | os.O_WRONLY, 0o666)
        except FileNotFoundError:
            return  # the queue is finished, and its folder is gone
        except OSError as error:
            if count == 0:
                raise FileError(f"this worker cannot write to {self.folder}: {error}; give it the right to") from error
            return
        try:
            with suppress(OSError):
                os.write(file, f"{count:012d}\n".encode())
        finally:
            os.close(file)  # other machines see what was written after it is closed

    def _counter(self, worker: str) -> str:
        try:
            return self._counter_file(worker).read_text(encoding="utf-8")
        except (OSError, ValueError):
            return ""

    def _file(self, lease: Lease) -> Path:
        return self.folder / "leases" / lease.name

    def _counter_file(self, worker: str) -> Path:
        return self.folder / "workers" / _plain(worker)


def _plain(text: str) -> str:
    """Return a text that may come from a file as a file name."""
    return "".join(sign if sign.isalnum() or sign in "-_" else "_" for sign in text)[:100] or "_"


@cache
def _machine() -> str | None:
    """Return what no other running machine or container has; None where the system does not tell it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def _begin(process: int) -> str | None:
    """Return when a process began, in ticks since the machine did; None if there is no such process."""
    try:
        return (
            Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
        )
    except (OSError, IndexError):
        return None


def _process() -> dict[str, Any]:
    return {"machine": _machine(), "process": os.getpid(), "began": _begin(os.getpid())}


def _has_ended(holder: dict[str, Any]) -> bool:
    """Return whether the system knows that a process of this machine has ended."""
    machine, process = holder.get("machine"), holder.get("process")
    if machine is None or machine != _machine() or type(process) is not int:
        return False
    return _begin(process) != holder.get("began") or _is_zombie(process)


def _is_zombie(process: int) -> bool:
    """Whether a process has ended, and only its parent has not noticed yet."""
    with suppress(OSError, IndexError):
        state = (
            Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
        )
        return state in "ZX"
    return False
