"""Measure what a prediction costs, in plain passes of the same network in eval mode and without gradients.

For each network and batch these take turns, and the best of several times counts:

- the plain pass;
- `predict` of the plain network, which adds probabilities and entropies;
- one pass of `moments` through the network with every weight random, without a likelihood;
- `predict` in one pass of moments.

    python benchmarks/prediction.py [--rounds 12] [--only U-Net ...] [--threads 2] [--cpu-time]

On a busy machine, ``--threads 1 --cpu-time`` counts the seconds of the processor instead of those of the clock.
"""

import argparse
import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import leanbayes as lb
from harness import RESULTS, race, write
from leanbayes.lab.models import densenet, lenet5, mlp, resnet18, unet, vit


def small_cnn(norm: bool) -> nn.Module:
    """Build the small CNN that natural gradients were tried on: two convolutions and two linear layers for 28x28."""
    norms = [nn.BatchNorm2d(16), nn.BatchNorm2d(32), nn.BatchNorm1d(128)] if norm else [nn.Identity()] * 3
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), norms[0], nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), norms[1], nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 49, 128), norms[2], nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


Case = tuple[Callable[[], nn.Module], tuple[int, ...], tuple[int, ...], lb.Likelihood]
NETWORKS: dict[str, Case] = {
    "U-Net, 64x64, 2 classes": (lambda: unet(3, 2), (3, 64, 64), (1, 16), lb.Categorical()),
    "U-Net, 64x64, 1 logit": (lambda: unet(3, 1), (3, 64, 64), (16,), lb.Bernoulli()),
    "U-Net, 128x128, 2 classes": (lambda: unet(3, 2), (3, 128, 128), (1, 16), lb.Categorical()),
    "U-Net, 96x128, 11 classes": (lambda: unet(3, 11), (3, 96, 128), (8,), lb.Categorical()),
    "DenseNet-121, 32x32": (lambda: densenet(121, 10, 3), (3, 32, 32), (16,), lb.Categorical()),
    "small CNN": (lambda: small_cnn(norm=False), (1, 28, 28), (1, 100, 500), lb.Categorical()),
    "small CNN, batch norm": (lambda: small_cnn(norm=True), (1, 28, 28), (1, 100, 500), lb.Categorical()),
    "LeNet-5": (lambda: lenet5(1, 10), (1, 28, 28), (1, 100, 500), lb.Categorical()),
    "MLP": (lambda: mlp(784, 10, (400, 400)), (784,), (1, 100, 500), lb.Categorical()),
    "ResNet-18": (lambda: resnet18(10, 3), (3, 32, 32), (1, 64), lb.Categorical()),
    "ViT": (lambda: vit(3, 10), (3, 32, 32), (1, 64), lb.Categorical()),
}
"""For each network: how it is built, the shape of an input, the sizes of batches, and what its outputs mean."""


def measure(names: list[str], rounds: int, clock: Callable[[], float]) -> dict[str, Any]:
    """Measure, for each network and batch, what predictions cost in plain passes."""
    figures: dict[str, Any] = {}
    for name in names:
        make, shape, batches, likelihood = NETWORKS[name]
        torch.manual_seed(0)
        plain = make().eval()
        bnn = lb.Bayesian(copy.deepcopy(plain), posterior=lb.posteriors.Normal(0.01), predict_by="moments").eval()
        for batch in batches:
            x = torch.randn(batch, *shape)
            times = race(_works(plain, bnn, x, likelihood), rounds, clock)
            row = {work: min(taken) / min(times["plain"]) for work, taken in times.items() if work != "plain"}
            figures[f"{name}, batch {batch}"] = {"plain_seconds": min(times["plain"]), **row}
            shown = {work: round(ratio, 2) for work, ratio in row.items()}
            print(f"{name}, batch {batch}: {1000 * min(times['plain']):.2f} ms", shown, flush=True)
    return figures


def _works(
    plain: nn.Module, bnn: lb.Bayesian, x: torch.Tensor, likelihood: lb.Likelihood
) -> dict[str, Callable[[], object]]:
    return {
        "plain": torch.no_grad()(lambda: plain(x)),
        "predict, plain network": lambda: lb.predict(plain, x, likelihood=likelihood),
        "moments": torch.no_grad()(lambda: lb.moments(bnn, x)),
        "predict, one pass": lambda: lb.predict(bnn, x, likelihood=likelihood),
    }


def main() -> None:
    """Run the measurements and write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--only", nargs="+", help="beginnings of names of networks; by default all")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--cpu-time", action="store_true", help="count seconds of the processor; takes one thread")
    parser.add_argument("--out", type=Path, default=RESULTS / "prediction.json")
    options = parser.parse_args()
    if options.cpu_time and options.threads != 1:
        parser.error("--cpu-time adds up the seconds of all threads; give --threads 1 too")
    torch.set_num_threads(options.threads)
    names = [name for name in NETWORKS if not options.only or name.startswith(tuple(options.only))]
    clock = time.process_time if options.cpu_time else time.perf_counter
    settings = {"rounds": options.rounds, "threads": options.threads, "cpu_time": options.cpu_time}
    write(options.out, measure(names, options.rounds, clock), settings)


if __name__ == "__main__":
    main()
