"""Measure what a training step with IVON costs: a ResNet-18 on 32x32 images against the plain network with Adam.

All weights are random. The steps take turns on one core, and the best of several counts. By default the clock counts
the seconds of the processor, so that other programs on the machine change little; --wall counts all seconds.

    python benchmarks/ivon_cost.py [--batch 64] [--rounds 5] [--wall]
"""

import argparse
import copy
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leanbayes as lb
from harness import RESULTS, write
from leanbayes.lab.models import resnet18

N_DATA = 50_000
PARTS = ("forward", "backward", "update")


def stepper(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Callable[[Any], list[float]]:
    """Return a function that makes one training step, and returns the seconds of its three parts."""

    def step(clock: Callable[[], float]) -> list[float]:
        optimizer.zero_grad()
        times = [clock()]
        loss = F.cross_entropy(model(x), y)
        times.append(clock())
        loss.backward()
        times.append(clock())
        optimizer.step()
        times.append(clock())
        return [after - before for before, after in pairwise(times)]

    return step


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--wall", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS / "ivon_cost.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = torch.randn(options.batch, 3, 32, 32), torch.randint(10, (options.batch,))
    plain = resnet18()
    steps = {"plain, Adam": stepper(plain, torch.optim.Adam(plain.parameters(), 1e-4), x, y)}
    for propagate in ("mirrored", "sample"):
        bnn = lb.Bayesian(copy.deepcopy(plain), propagate=propagate)
        optimizer = lb.optim.IVON(bnn, 1e-3, n_data=N_DATA, steps=1000, initial_scale=0.01)
        steps[f"IVON, {propagate}"] = stepper(bnn, optimizer, x, y)
    clock = time.perf_counter if options.wall else time.process_time
    rows: dict[str, list[list[float]]] = {name: [] for name in steps}
    for turn in range(options.rounds + 1):
        for name, step in steps.items():
            seconds = step(clock)
            if turn > 0:  # the first round compiles kernels
                rows[name].append(seconds)
    best = {name: dict(zip(PARTS, map(min, zip(*times, strict=True)), strict=True)) for name, times in rows.items()}
    base = sum(best["plain, Adam"].values())
    results = {
        name: parts | {"step": sum(parts.values()), "ratio": sum(parts.values()) / base} for name, parts in best.items()
    }
    for name, row in results.items():
        print(f"{name:16}", {key: round(value, 4) for key, value in row.items()})
    settings = {"batch": options.batch, "rounds": options.rounds, "clock": "wall" if options.wall else "processor"}
    write(options.out, results, settings | {"threads": 1, "model": "resnet18", "image": 32})


if __name__ == "__main__":
    main()
