"""Measure what moments cost on a ResNet-18 for 32x32 images, in the same run as plain passes and steps.

``benchmarks/prediction.py`` measures predictions of other networks.

- predict: one pass of `moments`, with every weight random and with 1 % of them, compared with a plain pass of the model
  and with a plain pass in channels_last, which is the layout that `moments` uses on the CPU.
- step: elbo, backward and SGD with momentum under "moments", with the statistics of batch norm fixed as in `fit`. The
  units are independent (rank 0), and convolutions use exact kernels, or boxes in the rows that end in "boxes".
- memory: by how much a step, and a prediction, raise the memory of tensors.
- samples: 20 draws of `predict`.
- covariance: the full covariance, which the predecessor of VDP++ carries, on the LeNet of its MNIST experiments.

    python benchmarks/moments_cost.py [--batch 64] [--rounds 8] [--threads 2] [--parts step memory] [--cpu-time]

With ``--parts`` the other parts of the record stay as they are. On a busy machine, ``--threads 1 --cpu-time`` counts
the seconds of the processor instead of those of the clock.
"""

import argparse
import copy
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from engine import N_DATA, stepper
from harness import RESULTS, race, timing, write
from leanbayes.evaluation.cost import peak_memory
from leanbayes.lab.models import lenet5, resnet18

SAMPLES = 20
PARTS = ("predict", "samples", "step", "memory", "covariance")
Clock = Callable[[], float]
SUBSPACES = {"all random": lb.everything(), "1 % random": lb.random_k(0.01)}

EXACT = lb.propagate.Moments(kernels="exact")
INDEPENDENT = lb.propagate.Moments(rank=0)
TRAINING = lb.propagate.Moments().lean()


def without_gradients(function: Callable[[], object]) -> Callable[[], object]:
    """Return the same work without gradients."""
    return torch.no_grad()(function)


def predictions(
    plain: nn.Module, bayesian: dict[str, lb.Bayesian], x: Tensor, rounds: int, clock: Clock
) -> dict[str, Any]:
    """Measure one pass of every kind in turns: seconds, and ratios to the plain pass."""
    plain.eval()
    innermost = copy.deepcopy(plain).to(memory_format=torch.channels_last)
    images = x.contiguous(memory_format=torch.channels_last)
    works: dict[str, Callable[[], object]] = {
        "plain": lambda: plain(x),
        "plain, channels_last": lambda: innermost(images),
        **{name: lambda bnn=bnn: lb.moments(bnn, x) for name, bnn in bayesian.items()},
        "all random, exact kernels": lambda: lb.moments(bayesian["all random"], x, by=EXACT),
        "1 % random, exact kernels": lambda: lb.moments(bayesian["1 % random"], x, by=EXACT),
        "all random, units independent": lambda: lb.moments(bayesian["all random"], x, by=INDEPENDENT),
        "1 % random, units independent": lambda: lb.moments(bayesian["1 % random"], x, by=INDEPENDENT),
    }
    times = race({name: without_gradients(work) for name, work in works.items()}, rounds, clock)
    figures: dict[str, Any] = {}
    for name, taken in times.items():
        figures |= timing(name, taken, times["plain"])
        figures[f"{name}_ratio_to_channels_last"] = min(taken) / min(times["plain, channels_last"])
    return figures


def samples_against_moments(bnn: lb.Bayesian, x: Tensor, rounds: int, clock: Clock) -> dict[str, float]:
    """Compare 20 draws with one pass of moments."""
    bnn.eval()
    times = race(
        {
            "moments": lambda: lb.predict(bnn, x, by="moments"),
            "20 samples": lambda: lb.predict(bnn, x, samples=SAMPLES, by="sample", method="loop"),
        },
        rounds,
        clock,
    )
    return timing("20 samples", times["20 samples"], times["moments"])


def steps(
    plain: nn.Module, bayesian: dict[str, lb.Bayesian], x: Tensor, y: Tensor, rounds: int, clock: Clock
) -> dict[str, Any]:
    """Measure one training step of every kind in turns: seconds, and ratios to the plain step."""
    works = {"plain": stepper(plain.train(), x, y)}
    for name, bnn in bayesian.items():
        for kind, training in (("", TRAINING), (", boxes", INDEPENDENT)):
            trained = lb.fix_statistics(copy.deepcopy(bnn).train())
            trained.propagate, trained.predict_by = training, "moments"
            works[name + kind] = stepper(trained, x, y)
    times = race(works, rounds, clock)
    figures: dict[str, Any] = {}
    for name, taken in times.items():
        figures |= timing(name, taken, times["plain"])
    return figures


def memory(plain: nn.Module, bnn: lb.Bayesian, x: Tensor, y: Tensor) -> dict[str, float]:
    """Measure peaks of memory above what was in use before; a step counts parameters, scales and gradients."""
    likelihood = lb.Categorical()

    def step(model: nn.Module) -> Callable[[], object]:
        def run() -> None:
            for parameter in model.parameters():
                parameter.grad = None
            lb.elbo(model, x, y, likelihood, n_data=N_DATA).loss.backward()

        return run

    def size(model: nn.Module) -> int:
        return sum(p.numel() * p.element_size() for p in model.parameters())

    plain.train(), lb.fix_statistics(bnn.train())
    bnn.predict_by = "moments"
    figures = {"step_plain": peak_memory(step(plain)) + size(plain)}
    for name, training in (("step_moments", TRAINING), ("step_moments_boxes", INDEPENDENT)):
        bnn.propagate = training
        figures[name] = peak_memory(step(bnn)) + size(bnn)
    plain.eval(), bnn.eval()
    figures["predict_plain"] = peak_memory(without_gradients(lambda: plain(x))) + size(plain)
    figures["predict_moments"] = peak_memory(without_gradients(lambda: lb.moments(bnn, x))) + size(bnn)
    for kind in ("step", "predict"):
        figures[f"{kind}_ratio"] = figures[f"{kind}_moments"] / figures[f"{kind}_plain"]
    figures["step_boxes_ratio"] = figures["step_moments_boxes"] / figures["step_plain"]
    return figures


def covariance(batch: int, rounds: int, clock: Clock) -> dict[str, Any]:
    """Measure the full covariance on a small CNN; the paper reports ten times the time and memory of VDP++."""
    x = torch.rand(batch, 1, 28, 28)
    plain = lenet5(1, 10).eval()
    bnn = lb.Bayesian(copy.deepcopy(plain), posterior=lb.posteriors.Normal(0.01)).eval()
    works = {
        "plain": lambda: plain(x),
        "moments": lambda: lb.moments(bnn, x),
        "covariance": lambda: lb.covariance(bnn, x),
    }
    times = race({name: without_gradients(work) for name, work in works.items()}, rounds, clock)
    figures: dict[str, Any] = {"batch": batch}
    for name, taken in times.items():
        figures |= timing(name, taken, times["plain"])
        figures[f"{name}_peak_bytes"] = peak_memory(without_gradients(works[name]))
    return figures


def main() -> None:
    """Measure, print the ratios, write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=RESULTS / "moments_cost.json")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure")
    parser.add_argument("--cpu-time", action="store_true", help="count seconds of the processor; takes one thread")
    options = parser.parse_args()
    if options.cpu_time and options.threads != 1:
        parser.error("--cpu-time adds up the seconds of all threads; give --threads 1 too")
    clock = time.process_time if options.cpu_time else time.perf_counter
    rounds = options.rounds
    settings = {"rounds": rounds, "threads": options.threads, "cpu_time": options.cpu_time}
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    x, y = torch.randn(options.batch, 3, 32, 32), torch.randint(0, 10, (options.batch,))
    plain = resnet18(10, 3)
    bayesian = {
        name: lb.Bayesian(copy.deepcopy(plain), subspace=subspace, posterior=lb.posteriors.Normal(0.01)).eval()
        for name, subspace in SUBSPACES.items()
    }
    every = bayesian["all random"]
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "predict": lambda: predictions(plain, bayesian, x, rounds, clock),
        "samples": lambda: samples_against_moments(every, x, max(2, rounds // 3), clock),
        "step": lambda: steps(plain, bayesian, x, y, rounds, clock),
        "memory": lambda: memory(plain, every, x, y),
        "covariance": lambda: covariance(16, rounds, clock),
    }
    results = json.loads(options.out.read_text())["results"] if options.out.exists() else {}
    for part in options.parts:
        figures = results[part] = parts[part]()
        print(part, {name: round(value, 3) for name, value in figures.items() if "ratio" in name}, flush=True)
        write(options.out, results, settings | {"batch": options.batch, "model": "resnet18, 32x32"})


if __name__ == "__main__":
    main()
