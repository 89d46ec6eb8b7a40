"""What `torch.compile` with inductor gains: a training step of each propagation, compiled and not.

Run it with ``python benchmarks/compile.py``. The first call of a compiled step, which generates and compiles the code,
is measured by itself. Later calls take turns with the uncompiled step, and the best of several times counts.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from harness import RESULTS, race, timing, write


class Block(nn.Module):
    """Two convolutions with batch norm around a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.last = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return the shortcut and the two convolutions, added."""
        return torch.relu(x + self.last(self.second(torch.relu(self.norm(self.first(x))))))


def network(blocks: int, channels: int) -> nn.Module:
    """Return a small residual network."""
    inner = [Block(channels) for _ in range(blocks)]
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1), *inner, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)
    )


def measured(by: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds of a step of one propagation, uncompiled and compiled."""
    torch.manual_seed(0)
    torch.compiler.reset()
    bnn = lb.Bayesian(network(options.blocks, options.channels), propagate=by)
    objective = lb.Objective(bnn, lb.Categorical(), n_data=10_000, check=False)
    compiled = torch.compile(objective, fullgraph=True)
    x, y = torch.randn(options.batch, 3, options.size, options.size), torch.randint(10, (options.batch,))

    def step(module: Any) -> Callable[[], None]:
        def work() -> None:
            objective.zero_grad()
            module(x, y).loss.backward()

        return work

    begin = time.perf_counter()
    step(compiled)()
    first = time.perf_counter() - begin
    times = race({"eager": step(objective), "compiled": step(compiled)}, options.rounds)
    row = {"propagation": by, "compile_seconds": first}
    for name, seconds in times.items():
        row |= timing(name, seconds, times["eager"])
    print(f"{by:10s} compiled/eager {row['compiled_ratio']:.2f}, first call {first:.0f} s")
    return row


def main() -> None:
    """Measure every propagation that is asked for, and write the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--propagations", nargs="+", default=["sample", "mirrored", "local", "moments"])
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--channels", type=int, default=16)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=RESULTS / "compile.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measured(by, options) for by in options.propagations]
    write(options.out, rows, {name: str(value) for name, value in vars(options).items() if name != "out"})


if __name__ == "__main__":
    main()
