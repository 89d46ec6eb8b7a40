"""What `torch.compile` with inductor gains: a training step of each propagation, compiled and not.

Run it with ``python benchmarks/compile.py``. It measures a small ResNet and a small ViT, with one record each. All
times are those of the processor, in one thread, so that other programs on the machine change them little. The first
call of a compiled step, which generates and compiles the code, is measured by itself, with the compiler that it starts.
Later calls take turns with the uncompiled step, and the best of several times counts. A graph break would be an error
(``fullgraph=True``).
"""

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config
import torch.nn.functional as F
from torch import Tensor, nn

import leanbayes as lb
from harness import RESULTS, race, timing, write
from promise_networks import Residual


def resnet(blocks: int, channels: int) -> nn.Module:
    """Return a small residual network."""
    inner = [Residual(channels) for _ in range(blocks)]
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1), *inner, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)
    )


class Attention(nn.Module):
    """A block of a transformer: attention with two heads, and a network of two layers, with layer norms before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens after attention and the network."""
        query, key, value = self.qkv(self.norms[0](x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.mix(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class ViT(nn.Module):
    """A small vision transformer with patches of 4 by 4 pixels."""

    def __init__(self, blocks: int, width: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.blocks = nn.Sequential(*(Attention(width) for _ in range(blocks)))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.head(self.blocks(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


NETWORKS: dict[str, Callable[[int, int], nn.Module]] = {"resnet": resnet, "vit": ViT}


def measured(network: str, by: str | None, options: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds of a step, uncompiled and compiled, of one propagation or of the plain network."""
    torch.manual_seed(0)
    torch.compiler.reset()
    model = NETWORKS[network](options.blocks, options.width)
    model = model if by is None else lb.Bayesian(model, propagate=by)
    objective = lb.Objective(model, lb.Categorical(), n_data=10_000, check=False)
    compiled = torch.compile(objective, fullgraph=True)
    x, y = torch.randn(options.batch, 3, options.size, options.size), torch.randint(10, (options.batch,))

    def step(module: Any) -> Callable[[], None]:
        def work() -> None:
            objective.zero_grad()
            module(x, y).loss.backward()

        return work

    begin = sum(os.times()[:4])  # of this process and of the compiler
    step(compiled)()
    first = sum(os.times()[:4]) - begin
    works = {"eager": step(objective), "compiled": step(compiled)}
    times = race(works, options.rounds, clock=time.process_time)
    row = {"propagation": by or "plain network", "first_call_seconds": first}
    for name, seconds in times.items():
        row |= timing(name, seconds, times["eager"])
    print(f"{network:7s} {row['propagation']:14s} compiled/eager {row['compiled_ratio']:.2f}, first call {first:.0f} s")
    return row


def main() -> None:
    """Measure every network and propagation that is asked for, and write the records."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--propagations", nargs="+", default=["sample", "mirrored", "local", "moments"])
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the records")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch._inductor.config.compile_threads = 1
    settings = {name: value for name, value in vars(options).items() if name not in ("out", "networks")}
    for network in options.networks:
        rows: list[dict[str, Any]] = []
        for by in (None, *options.propagations):
            rows.append(measured(network, by, options))
            write(options.out / f"compile_{network}.json", rows, settings)


if __name__ == "__main__":
    main()
