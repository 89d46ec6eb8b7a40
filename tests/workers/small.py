"""Small jobs whose results everybody can check, and a worker that does them.

    python -m tests.workers.small FOLDER JOBS      (a worker, as executors start it)

A job of number n walks n steps of a random walk with the seed n. It writes the walk to a file in a few parts, so that a
kill hits it in the middle, and it notes in a log when it begins and when its result is published.
"""

import argparse
import hashlib
import os
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from leanbayes._files import write_bytes, write_text
from leanbayes.errors import LeanBayesError
from leanbayes.lab.jobs import Job, Patience, Queue
from leanbayes.lab.jobs.leases import PARENT
from leanbayes.lab.jobs.work import work

__all__ = ["QUICK", "expected", "jobs", "log_of", "result_of", "run_worker"]

QUICK = Patience(beat=0.05, silence=1.0, look=0.02)


def jobs(number: int) -> list[Job]:
    return [Job(f"walk-{index:03d}", payload={"steps": 20 + index}) for index in range(number)]


def result_of(steps: int) -> tuple[list[float], dict[str, Any]]:
    chance = random.Random(steps)
    position, walk = 0.0, []
    for _ in range(steps):
        position += chance.gauss(0, 1)
        walk.append(position)
    text = "\n".join(map(repr, walk))
    return walk, {"steps": steps, "end": position, "digest": hashlib.sha256(text.encode()).hexdigest()}


def expected(number: int) -> dict[str, dict[str, Any]]:
    """What one process gives that does all jobs one after the other."""
    return {job.key: result_of(job.payload["steps"])[1] for job in jobs(number)}


def log_of(folder: Path) -> list[list[str]]:
    path = folder / "log"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def note(folder: Path, *words: str) -> None:
    with (folder / "log").open("ab") as file:
        os.write(file.fileno(), (" ".join(words) + "\n").encode())  # one write is one line, also of several processes


def run_worker(
    folder: Path,
    number: int,
    patience: Patience = QUICK,
    pause: float = 0.03,
    scratch: Path | None = None,
    most_deaths: int = 50,
) -> None:
    """Do jobs until all are done. With ``scratch``, each job needs a megabyte in that folder for a moment."""
    queue = Queue(folder / "queue", {"jobs": number}, patience=patience, most_deaths=most_deaths)
    queue.add(jobs(number))
    me = queue.leases.worker

    def do(job: Job, attempt: Path) -> dict[str, Any]:
        note(folder, "begins", job.key, me)
        walk, result = result_of(job.payload["steps"])
        if scratch is not None:
            write_bytes(scratch / me, bytes(2**20))
            (scratch / me).unlink()
        half = len(walk) // 2
        write_text(attempt / "first.txt", "\n".join(map(repr, walk[:half])))
        time.sleep(pause * (0.5 + random.random()))
        write_text(attempt / "walk.txt", "\n".join(map(repr, walk)))
        (attempt / "first.txt").unlink()
        return result

    with queue.leases.living():
        note(folder, "lives", me, str(Path("/proc/self/ns/net").readlink()), str(round(time.time())))
        work(queue, do, say=lambda line: note(folder, "says", me, *line.split()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("jobs", type=int)
    parser.add_argument("--pause", type=float, default=0.01)
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--watch-only", action="store_true", help="do not ask the system whether a process has ended")
    asked = parser.parse_args()
    os.environ.setdefault(PARENT, str(os.getppid()))
    patience = replace(QUICK, ask_system=not asked.watch_only)
    try:
        run_worker(asked.folder, asked.jobs, patience, asked.pause, asked.scratch)
    except LeanBayesError as error:
        sys.stderr.write(f"leanbayes: {error}\n")
        raise SystemExit(2) from None
