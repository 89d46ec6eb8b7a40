"""Many workers in forked processes, which are killed and stopped at random moments, and what they must leave."""

import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from leanbayes.lab.jobs import Patience
from tests.workers.small import QUICK, expected, log_of, run_worker

__all__ = ["Crowd", "check_all_done", "kills", "stopped"]


@dataclass
class Crowd:
    """Workers in seats 0, 1, 2, …; when one is killed, a new one takes its seat.

    Args:
        work: what a worker does. It is forked, and a fork that uses the threads of torch waits for ever, so each of
            them has one thread.
        size: how many workers there are.
    """

    work: Callable[[int], None]
    size: int
    processes: dict[int, int] = field(default_factory=dict)
    killed: Counter[int] = field(default_factory=Counter)
    asleep: dict[int, float] = field(default_factory=dict)
    stopped: int = 0
    ended_badly: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.set_num_threads(1)

    def start(self, seat: int) -> None:
        process = os.fork()
        if process == 0:
            code = 1
            try:
                self.work(seat)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        self.processes[seat] = process

    def reap(self) -> None:
        for seat, process in list(self.processes.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                del self.processes[seat]
                code = os.waitstatus_to_exitcode(status)
                if code not in (0, -signal.SIGKILL):
                    self.ended_badly.append(code)

    def kill(self, seat: int) -> bool:
        """Kill the worker of a seat and start another; False if it had ended by itself."""
        self.reap()
        process = self.processes.get(seat)
        if process is None:
            return False
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        self.killed[seat] += 1
        self.start(seat)
        return True

    def stop(self, seat: int, seconds: float) -> None:
        """Stop the worker of a seat; `wake` lets it go on when the time has come."""
        os.kill(self.processes[seat], signal.SIGSTOP)
        self.asleep[seat] = time.monotonic() + seconds
        self.stopped += 1

    def wake(self, now: float) -> None:
        for seat, end in list(self.asleep.items()):
            if end <= now:
                del self.asleep[seat]
                os.kill(self.processes[seat], signal.SIGCONT)

    def wait(self, seconds: float = 300) -> None:
        end = time.monotonic() + seconds
        while self.processes:
            self.wake(time.monotonic())
            self.reap()
            if time.monotonic() > end:
                for process in self.processes.values():
                    os.kill(process, signal.SIGKILL)
                raise AssertionError(f"{len(self.processes)} workers still work after {seconds} seconds")
            time.sleep(0.01)


def kills(
    folder: Path,
    number: int,
    workers: int,
    seed: int,
    patience: Patience = QUICK,
    *,
    stops: int = 2,
    pause: float = 0.25,
) -> dict[str, Any]:
    """Do small jobs with workers of which each is killed at least once, and some are stopped for a while."""
    chance = random.Random(seed)
    crowd = Crowd(lambda seat: run_worker(folder, number, patience, pause), workers)
    for seat in range(workers):
        crowd.start(seat)
    targets = list(range(workers)) + [chance.randrange(workers) for _ in range(workers // 2)]
    chance.shuffle(targets)
    for turn, seat in enumerate(targets):
        time.sleep(chance.uniform(0.0, 1.5 * number * pause / workers / len(targets)))
        crowd.wake(time.monotonic())
        crowd.asleep.pop(seat, None)
        crowd.kill(seat)
        awake = [other for other in crowd.processes if other != seat and other not in crowd.asleep]
        if turn < stops and awake:
            crowd.stop(chance.choice(awake), 1.5 * patience.silence)
    crowd.wait()
    report = check_all_done(folder, number)
    assert not crowd.ended_badly, crowd.ended_badly
    assert sorted(crowd.killed) == list(range(workers)), f"all was done before each worker was killed: {crowd.killed}"
    return report | {"workers": workers, "kills": sum(crowd.killed.values()), "stops": crowd.stopped, "seed": seed}


def stopped(folder: Path, number: int = 2, patience: Patience = QUICK) -> dict[str, Any]:
    """Stop a worker in the middle of a job for longer than its lease: another does the job, and the first drops it."""
    crowd = Crowd(lambda seat: run_worker(folder, number, patience, pause=0.5), 2)
    crowd.start(0)
    while not any(words[0] == "begins" for words in log_of(folder)):
        time.sleep(0.01)
    os.kill(crowd.processes[0], signal.SIGSTOP)
    crowd.start(1)
    while 1 in crowd.processes:
        crowd.reap()
        time.sleep(0.01)
    report = check_all_done(folder, number)
    os.kill(crowd.processes[0], signal.SIGCONT)
    crowd.wait(60)
    assert not crowd.ended_badly
    after = check_all_done(folder, number)  # the first worker has changed nothing
    assert (report["retried"], report["discarded"]) == (1, 0)
    assert after["discarded"] == 1, "the worker that was stopped said nothing"
    return after | {"stops": 1}


def check_all_done(folder: Path, number: int) -> dict[str, Any]:
    """Raise unless every job was published once, with the files and the result of a serial run."""
    truth, done = expected(number), folder / "queue" / "done"
    assert sorted(path.name for path in done.iterdir()) == sorted(truth)
    retried = 0
    for key, result in truth.items():
        outcome = json.loads((done / key / "outcome.json").read_text())
        assert outcome["error"] is None
        assert outcome["result"] == result
        names = sorted(path.name for path in (done / key).iterdir())
        assert names == ["outcome.json", "walk.txt"], (key, names)
        walk = (done / key / "walk.txt").read_text().splitlines()
        assert len(walk) == result["steps"]
        assert float(walk[-1]) == result["end"]
        retried += outcome["attempts"] > 1
    begun = Counter(words[1] for words in log_of(folder) if words[0] == "begins")
    discarded = sum(words[0] == "says" and "discarded" in words for words in log_of(folder))
    return {"jobs": number, "begun": sum(begun.values()), "retried": retried, "discarded": discarded}
