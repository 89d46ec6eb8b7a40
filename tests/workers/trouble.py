"""Workers in trouble: in separate network namespaces, with clocks that disagree, or on a disk that is full."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.workers.crowd import check_all_done
from tests.workers.small import log_of

__all__ = ["clocks", "full_disk", "full_folder", "namespaces"]

Process = subprocess.Popen[str]
_DAY = 24 * 3600


def _worker(
    folder: Path, number: int, *options: str, before: Sequence[str] = (), **more: str
) -> "subprocess.Popen[str]":
    command = [*before, sys.executable, "-m", "tests.workers.small", str(folder), str(number), *options]
    return subprocess.Popen(command, env=os.environ | more, stderr=subprocess.PIPE, text=True, start_new_session=True)


def _kill(worker: Process) -> None:
    os.killpg(worker.pid, signal.SIGKILL)
    worker.communicate()


def _wait_for_jobs(folder: Path, number: int, workers: int = 1) -> None:
    """Wait until so many jobs have begun, by so many different workers."""
    end = time.monotonic() + 120
    while True:
        begun = [words[2] for words in log_of(folder) if words[0] == "begins"]
        if len(begun) >= number and len(set(begun)) >= workers:
            return
        assert time.monotonic() < end, "the workers do not begin"
        time.sleep(0.02)


def namespaces(folder: Path, number: int) -> dict[str, Any]:
    """Two workers in network, host name and process namespaces of their own share a folder; one is killed.

    Neither can see the processes of the other, nor reach it by any network.
    """
    apart = ["unshare", "--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], check=False, capture_output=True).returncode:
        return {"namespaces": "this machine does not permit them"}
    workers = [_worker(folder, number, "--pause", "0.1", before=apart) for _ in range(2)]
    _wait_for_jobs(folder, 6, workers=2)
    _kill(workers[0])
    _, errors = workers[1].communicate(timeout=240)
    assert workers[1].returncode == 0, errors
    networks = {words[2] for words in log_of(folder) if words[0] == "lives"}
    own = str(Path("/proc/self/ns/net").readlink())
    assert len(networks) == 2, networks
    assert own not in networks
    return check_all_done(folder, number) | {"networks": len(networks), "kills": 1}


def clocks(folder: Path, number: int) -> dict[str, Any]:
    """Three workers whose wall clocks are days apart, of which one is killed, and nobody asks the system about it."""
    library = folder / "shifted_clock.so"
    source = Path(__file__).with_name("shifted_clock.c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    shifts = (0, 3 * _DAY, -400 * _DAY)
    workers = [
        _worker(folder, number, "--pause", "0.1", "--watch-only", LD_PRELOAD=str(library), SHIFT_SECONDS=str(shift))
        for shift in shifts
    ]
    _wait_for_jobs(folder, 9, workers=3)
    _kill(workers[1])
    for worker in (workers[0], workers[2]):
        _, errors = worker.communicate(timeout=240)
        assert worker.returncode == 0, errors
    times = [int(words[3]) for words in log_of(folder) if words[0] == "lives"]
    assert max(times) - min(times) > 402 * _DAY, "the clocks were not shifted"
    return check_all_done(folder, number) | {"clocks_differ_by_days": (max(times) - min(times)) // _DAY, "kills": 1}


@contextlib.contextmanager
def _small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system in memory of a given size; the system must permit it."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "leanbayes", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def full_disk(folder: Path, number: int) -> dict[str, Any]:
    """One of two workers has a full disk of its own: it gives its job back, says so, and the other does all jobs."""
    (folder / "ample").mkdir(parents=True)
    with _small_disk(folder / "tiny", "64k") as tiny:
        poor = _worker(folder, number, "--scratch", str(tiny))
        _, errors = poor.communicate(timeout=120)
        assert poor.returncode == 2, errors
        line = errors.strip().splitlines()[-1]
        assert "the disk of this worker is full, so it gave the job" in line
        rich = _worker(folder, number, "--scratch", str(folder / "ample"))
        _, errors = rich.communicate(timeout=120)
        assert rich.returncode == 0, errors
    return check_all_done(folder, number) | {"said": line}


def full_folder(folder: Path, number: int) -> dict[str, Any]:
    """The shared folder itself is full: every worker says so; when there is space again, nothing is lost."""
    with _small_disk(folder, "2m") as shared:
        ballast = shared / "ballast"
        first = _worker(shared, number, "--pause", "0.05")
        _wait_for_jobs(shared, 5)
        with contextlib.suppress(OSError), ballast.open("wb") as file:
            while True:
                file.write(bytes(4096))
                file.flush()
        _, errors = first.communicate(timeout=120)
        assert first.returncode == 2, errors
        line = errors.strip().splitlines()[-1]
        assert "disk of this worker is full" in line or "No space left" in line, errors
        ballast.unlink()
        again = _worker(shared, number)
        _, errors = again.communicate(timeout=120)
        assert again.returncode == 0, errors
        return check_all_done(shared, number) | {"said": line}
