"""Let workers share a queue of jobs, kill them, stop them, and compare what they leave with a serial run.

    python -m tests.workers                                  (everything that this machine permits; `make test-workers`)
    python -m tests.workers kills predictions                (a part)
    python -m tests.workers --small kills stopped            (a sample, as the default tests run it)

Each line of the output is one scenario with its counts. The program ends with code 1 if one of them fails.

* kills: 200 jobs, 8 workers, each of which is killed at least once, three are stopped for longer than their lease; once
  as on one machine, where the system tells who has ended, and once as on many, where only the counters tell it.
* stopped: a worker is stopped in the middle of a job for longer than its lease; later it may publish nothing.
* namespaces: two workers that see neither the network nor the processes of each other share a folder; one is killed.
* clocks: three workers whose clocks are up to 403 days apart; one is killed.
* full-disk, full-folder: a worker, or all of them, have no space.
* executors: the same jobs by local processes, by submitit's local executor and by a Ray cluster (`ray start --head`).
* commands: compare, tune and reproduce by two worker processes, against one process.
* predictions: 100,000 inputs, 4 workers, 12 kills; efficiency: the speed of 2 and 4 workers against one.
"""

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from leanbayes.lab.jobs import Patience
from tests.workers import trouble
from tests.workers.commands import LINES, same_by_workers
from tests.workers.crowd import kills, stopped
from tests.workers.executors import by_executor, ray_cluster
from tests.workers.predictions import efficiency, predict_with_kills

Reports = Iterator[dict[str, Any]]


def _kills(top: Path, seed: int) -> Reports:
    for name, ask in (("one machine", True), ("many machines", False)):
        patience = Patience(beat=0.05, silence=1.0, look=0.02, ask_system=ask)
        yield {"as on": name} | kills(top / name.replace(" ", "-"), 200, 8, seed, patience, stops=3)


def _executors(top: Path, seed: int) -> Reports:
    yield by_executor("local:2", top / "local", 200)
    if find_spec("submitit") is None or find_spec("ray") is None:
        yield {"slurm and ray": "submitit or ray is not installed: pip install 'leanbayes[cluster]'"}
        return
    yield by_executor("slurm:cluster=local,workers=2", top / "slurm", 200)
    with ray_cluster() as address:
        yield by_executor(f"ray:{address},workers=2", top / "ray", 200)


def _commands(top: Path, seed: int) -> Reports:
    for command in LINES:
        (top / command).mkdir()
        yield same_by_workers(top / command, command)


SCENARIOS: dict[str, Callable[[Path, int], Reports]] = {
    "kills": _kills,
    "stopped": lambda top, seed: iter([stopped(top)]),
    "namespaces": lambda top, seed: iter([trouble.namespaces(top, 60)]),
    "clocks": lambda top, seed: iter([trouble.clocks(top, 60)]),
    "full-disk": lambda top, seed: iter([trouble.full_disk(top, 60)]),
    "full-folder": lambda top, seed: iter([trouble.full_folder(top / "disk", 60)]),
    "executors": _executors,
    "commands": _commands,
    "predictions": lambda top, seed: iter([predict_with_kills(top, 100_000, 4, 1000, 12, seed)]),
    "efficiency": lambda top, seed: iter([efficiency(top, 40_000, 1000)]),
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--small", action="store_true", help="fewer jobs and inputs for kills and predictions")
    asked = parser.parse_args()
    unknown = set(asked.scenarios) - set(SCENARIOS)
    if unknown:
        parser.error(f"unknown scenarios {sorted(unknown)}; choose from {list(SCENARIOS)}")
    if asked.small:
        SCENARIOS["kills"] = lambda top, seed: iter([kills(top, 40, 4, seed, stops=1, pause=0.2)])
        SCENARIOS["predictions"] = lambda top, seed: iter([predict_with_kills(top, 4_000, 2, 200, 2, seed)])
    failed = []
    memory = Path("/dev/shm")  # a disk would need a moment for each flush, and the runs have thousands of them
    for name in asked.scenarios or SCENARIOS:
        began = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as top:
                for report in SCENARIOS[name](Path(top), asked.seed):
                    print(json.dumps({"scenario": name} | report), flush=True)
        except Exception:
            traceback.print_exc()
            failed.append(name)
        sys.stderr.write(f"{name}: {time.monotonic() - began:.0f} s\n")
    print(json.dumps({"failed": failed, "seed": asked.seed}))
    raise SystemExit(bool(failed))
