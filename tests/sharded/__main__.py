"""Kill ranks of a training that torchrun restarts, and compare its end with that of an undisturbed training.

    python -m tests.sharded --kills 10 --seed 17                   (FSDP2 in a loop of one's own; `make test-elastic`)
    python -m tests.sharded --kills 10 --seed 17 --how fit         (`leanbayes.fit`, data-parallel)
    python -m tests.sharded --kills 10 --seed 17 --how fit-fsdp    (`leanbayes.fit`, with sharded weights)

Each kill (SIGKILL) hits one rank, chosen at random, at a random moment after all ranks have started: while they join
each other, train, or write a checkpoint. The last line is JSON: the kills, the steps at which they fell, and the
largest difference between the weights of both trainings, which is 0 because both compute the same numbers.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

TOP = Path(__file__).parents[2]


def started(how: str, folder: Path, processes: int, restarts: int) -> subprocess.Popen[str]:
    folder.mkdir(parents=True)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TOP), *sys.path]), "OMP_NUM_THREADS": "1"}
    # Without the second setting, torchrun keeps the addresses of dead ranks, and the ranks of the next attempt may wait
    # for one of these for half an hour.
    environment |= {"ACCELERATE_USE_CPU": "true", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    if how == "fit-fsdp":
        environment |= {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_MIN_NUM_PARAMS": "20"}
        environment |= {"FSDP_AUTO_WRAP_POLICY": "SIZE_BASED_WRAP"}
    launch = f"torch.distributed.run --standalone --nproc-per-node {processes} --max-restarts {restarts}"
    command = [sys.executable, "-m", *launch.split(), "--monitor-interval", "0.1", "-m", "tests.sharded.training"]
    words = [*command, how.partition("-")[0], str(folder)]
    with (folder / "log").open("w") as log:
        return subprocess.Popen(words, env=environment, stdout=log, stderr=subprocess.STDOUT, text=True, cwd=TOP)


def ended(process: subprocess.Popen[str], folder: Path) -> list[torch.Tensor]:
    if process.wait(timeout=900):
        raise SystemExit((folder / "log").read_text()[-4000:])
    weights: list[torch.Tensor] = torch.load(folder / "end", weights_only=True)
    return weights


def pids_of(folder: Path, processes: int, before: set[int]) -> list[int]:
    """Wait until all ranks have started anew, and return the numbers of their processes; none if the training ended."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and not (folder / "end").exists():
        pids = set()
        for rank in range(processes):
            with contextlib.suppress(OSError, ValueError):
                pids.add(int((folder / "pids" / str(rank)).read_text()))
        if len(pids) == processes and not pids & before:
            return sorted(pids)
        time.sleep(0.02)
    return []


def step_of(folder: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int((folder / "step").read_text())
    return 0


def wait_for(folder: Path, number: int) -> bool:
    """Wait until so many steps are done since now, and return whether the training had stopped for two minutes."""
    (folder / "step").unlink(missing_ok=True)
    seen: set[int] = set()
    deadline = time.monotonic() + 120
    while len(seen - {0}) < number and not (folder / "end").exists() and time.monotonic() < deadline:
        seen.add(step_of(folder))
        time.sleep(0.01)
    return time.monotonic() >= deadline


def disturbed(how: str, folder: Path, processes: int, kills: int, chance: random.Random) -> tuple[list, list[int], int]:
    """Return the weights in the end, the steps at which kills fell, and how often the ranks were found waiting."""
    stuck = 0
    process, before, steps = started(how, folder, processes, kills + 5), set[int](), list[int]()
    while len(steps) < kills:
        pids = pids_of(folder, processes, before)
        if not pids:
            break
        before |= set(pids)
        if chance.random() < 0.3:  # while the ranks join each other and read the checkpoint
            time.sleep(chance.uniform(0.0, 2.0))
        else:
            stuck += wait_for(folder, chance.randint(1, 8))
            time.sleep(chance.uniform(0.0, 0.3))
        if (folder / "end").exists():
            break
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(pids), signal.SIGKILL)
            steps.append(step_of(folder))
    return ended(process, folder), steps, stuck


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--how", choices=["loop", "fit", "fit-fsdp"], default="loop")
    asked = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as top:
        undisturbed = started(asked.how, Path(top, "undisturbed"), asked.processes, 0)
        want = ended(undisturbed, Path(top, "undisturbed"))
        chance = random.Random(asked.seed)
        got, steps, stuck = disturbed(asked.how, Path(top, "disturbed"), asked.processes, asked.kills, chance)
    difference = max(float((a - b).abs().max()) for a, b in zip(want, got, strict=True))
    report = {"how": asked.how, "kills": len(steps), "at steps": steps, "stuck": stuck, "difference": difference}
    print(json.dumps(report | {"seconds": round(time.monotonic() - begin)}))
    sys.exit(difference > 0 or len(steps) < asked.kills)


if __name__ == "__main__":
    main()
