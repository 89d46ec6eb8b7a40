"""The same small jobs by every executor: processes of this machine, submitit's local executor, and Ray."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from leanbayes.lab.jobs import Crew, Queue, plan_of
from tests.workers.crowd import check_all_done
from tests.workers.small import QUICK, jobs

__all__ = ["by_executor", "ray_cluster"]


def by_executor(text: str, folder: Path, number: int) -> dict[str, Any]:
    """Have small jobs done by the workers of an executor, and compare with a serial run."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.workers.small", str(folder), str(number)]
    crew = Crew(plan_of(text), command, patience=QUICK)
    queue = Queue(folder / "queue", {"jobs": number}, patience=QUICK)
    report: dict[str, Any] = {}
    began = time.monotonic()

    def do(*_: object) -> dict[str, Any]:
        raise AssertionError("this process does no jobs itself")

    with crew.working(queue):
        queue.add(jobs(number))
        with crew.collecting(queue, do) as is_first:
            assert is_first
            report = check_all_done(folder, number)
            workers = {queue.outcome(job.key).worker for job in jobs(number)}
    assert not (folder / "queue").exists()
    return {"executor": text, "workers": len(workers), "seconds": round(time.monotonic() - began, 1)} | report


class ray_cluster:  # noqa: N801  (a context manager)
    """A Ray cluster on this machine, started by ``ray start --head``, with a port of its own."""

    def __init__(self, port: int = 6391) -> None:
        self.address = f"127.0.0.1:{port}"
        self.port = port
        program = shutil.which("ray")
        self.ray = [program] if program else [sys.executable, "-m", "ray.scripts.scripts"]

    def __enter__(self) -> str:
        words = ["start", "--head", f"--port={self.port}", "--num-cpus=2", "--include-dashboard=false"]
        words += ["--disable-usage-stats", "--object-store-memory=100000000"]
        self.head = subprocess.Popen(
            [*self.ray, *words, "--block"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | {"RAY_worker_niceness": "0"},  # on a busy machine, its usual 15 would wait for minutes
        )
        end = time.monotonic() + 120
        while not self._answers():
            assert self.head.poll() is None, "ray start --head ended"
            assert time.monotonic() < end, "ray start --head does not answer"
            time.sleep(0.5)
        return self.address

    def __exit__(self, *_: object) -> None:
        self.head.terminate()  # it ends the processes that it has started
        try:
            self.head.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.head.pid, signal.SIGKILL)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False
