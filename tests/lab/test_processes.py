"""Workers that end with their parent, and a folder for one process at a time, both under kills."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from leanbayes.errors import FileError, LeanBayesError
from leanbayes.lab import processes
from leanbayes.lab.processes import only_user_of, release_memory, worker_processes

PARENT = """
import os, sys, time
from pathlib import Path
from leanbayes.lab.processes import worker_processes

def work(folder):
    Path(folder, str(os.getpid())).touch()
    time.sleep(600)

if __name__ == "__main__":
    with worker_processes(2, threads=1) as pool:
        jobs = [pool.submit(work, sys.argv[1]) for _ in range(2)]
        jobs[0].result()
"""
HOLDER = """
import sys, time
from pathlib import Path
from leanbayes.lab.processes import only_user_of

with only_user_of(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def is_alive(process: int) -> bool:
    """Whether a process runs; one that has ended but that nobody has asked about is a zombie."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def until(condition: object, seconds: float = 300.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.02)
    return False


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs Linux to see which processes run")
def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    """Workers waited for their dead parent for ever, and kept its memory and its cores."""
    script, folder = tmp_path / "parent.py", tmp_path / "workers"
    script.write_text(PARENT)
    folder.mkdir()
    parent = subprocess.Popen([sys.executable, script, folder])
    try:
        assert until(lambda: len(list(folder.iterdir())) == 2)
    finally:
        parent.kill()
        parent.wait()
    workers = [int(path.name) for path in folder.iterdir()]
    ended = until(lambda: not any(map(is_alive, workers)))
    for worker in workers:
        if is_alive(worker):
            os.kill(worker, signal.SIGKILL)
    assert ended


def end_at_once() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_dies_is_an_error() -> None:
    with pytest.raises(LeanBayesError, match="worker process ended"), worker_processes(1, threads=1) as pool:
        pool.submit(end_at_once).result()


def test_a_folder_has_one_user(tmp_path: Path) -> None:
    with only_user_of(tmp_path):
        with pytest.raises(FileError, match=rf"number {os.getpid()}\) uses the folder"), only_user_of(tmp_path):
            pass
        with pytest.raises(FileError), only_user_of(tmp_path):  # the attempt did not take the lock away
            pass
    with only_user_of(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_killed_user_leaves_the_folder_free(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(FileError, match=f"number {holder.pid}"), only_user_of(tmp_path):
        pass
    holder.kill()
    holder.communicate()
    with only_user_of(tmp_path):
        pass


def test_memory_is_swept_only_where_the_process_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep over all objects takes longer than the training of a tiny network."""
    sweeps: list[int] = []
    monkeypatch.setattr("gc.collect", lambda: sweeps.append(1))
    sizes = iter([100 << 20, 90 << 20, 91 << 20, 153 << 20, 155 << 20, 120 << 20, None, None])
    monkeypatch.setattr(processes, "_resident_bytes", lambda: next(sizes))
    monkeypatch.setattr(processes, "_kept", 0)
    counts = []
    for _ in range(5):
        release_memory()
        counts.append(len(sweeps))
    assert counts == [1, 1, 1, 2, 3]  # at first; +1 MB; +63 MB; +65 MB; and always where the system does not tell


def test_memory_of_a_large_tensor_is_given_back() -> None:
    release_memory()
    before = processes._resident_bytes()
    if before is None:
        pytest.skip("this system does not tell how much memory a process uses")
    cycle: list[object] = [torch.ones(2**25)]  # 128 MB that only a sweep finds
    cycle.append(cycle)
    del cycle
    release_memory()
    assert (processes._resident_bytes() or 0) < before + 2**25
