"""Measure what a Monte Carlo KL costs as the number M of draws grows (Nazarovs et al. 2021, figures 1, 2, 5 and 6).

- weights: peak memory and time of one estimate and its gradient, for 10⁶ and 10⁷ weights and M from 1 to 10,000. Four
  ways are compared: the direct graph, gradients that are accumulated draw by draw (figure 5), statistics that are
  accumulated over the draws (Theorem 2), and statistics that are drawn from their own distribution. What would take
  more than 40 s or 12 GB is not run, and the record says so.
- families: M = 1000 compared with M = 1 for 10⁶ weights, as `MonteCarlo` computes them by default.
- nets: one training step at M = 100 compared with M = 1, for DenseNet-121, VGG-16 and ResNet-50, Normal and Radial.

    python benchmarks/kl.py [--rounds 3] [--only families [--cpu-time]] [--nets densenet121 vgg16 resnet50]
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributions import Normal as TorchNormal

import leanbayes as lb
from engine import stepper
from harness import RESULTS, race, timing, write
from leanbayes.evaluation.cost import peak_memory
from leanbayes.lab.models import model_named
from leanbayes.posteriors import RandomWeight

COUNTS = (10**6, 10**7)
DRAWS = (1, 10, 100, 1000, 10_000)
TURNS = 20
MOST_SECONDS, MOST_BYTES = 40.0, 12 * 2**30
PRIOR = TorchNormal(0.0, 1.0)


def weight_of(count: int, posterior: Any = None) -> RandomWeight:
    """Build ``count`` random weights with σ = 0.05."""
    mean = (0.1 * torch.randn(count)).requires_grad_()
    spread = torch.full((count,), 0.05).requires_grad_()
    return RandomWeight("weights", mean, None, spread, posterior or lb.posteriors.Normal())


def estimate(estimator: lb.MonteCarlo, weight: RandomWeight) -> None:
    """Compute one estimate of the KL and its gradient."""
    weight.mean.grad = weight.spread.grad = None
    estimator(weight, PRIOR).backward()


def by_accumulation(draws: int, weight: RandomWeight) -> None:
    """Build a small graph for each draw and add the gradients up (Nazarovs et al. 2021, figure 5)."""
    weight.mean.grad = weight.spread.grad = None
    naive = lb.MonteCarlo(1, direct=True)
    for _ in range(draws):
        (naive(weight, PRIOR) / draws).backward()


def works(draws: int, weight: RandomWeight) -> dict[str, Callable[[], None]]:
    """Return the four ways to estimate the KL, by name."""
    return {
        "direct": lambda: estimate(lb.MonteCarlo(draws, direct=True), weight),
        "gradient accumulation": lambda: by_accumulation(draws, weight),
        "accumulated statistics": lambda: estimate(lb.MonteCarlo(draws, statistics="accumulated"), weight),
        "sampled statistics": lambda: estimate(lb.MonteCarlo(draws, statistics="sampled"), weight),
    }


def weights(rounds: int) -> dict[str, Any]:
    """Measure seconds and bytes for each number of weights, way and M."""
    figures: dict[str, Any] = {}
    for count in COUNTS:
        weight = weight_of(count)
        last: dict[str, tuple[int, float, float]] = {}
        for draws in DRAWS:
            for name, work in works(draws, weight).items():
                key = f"{count} weights, {name}, M = {draws}"
                if name in last:
                    before, seconds, size = last[name]
                    grows = name != "sampled statistics"
                    expected = seconds * (draws / before if grows else 1)
                    if expected > MOST_SECONDS or (name == "direct" and size * draws / before > MOST_BYTES):
                        figures[key] = "not run: too long or too large"
                        continue
                work()
                times = []
                for _ in range(rounds):
                    begin = time.perf_counter()
                    work()
                    times.append(time.perf_counter() - begin)
                    if times[-1] > 5:
                        break
                weight.mean.grad = weight.spread.grad = (
                    None  # memory that was in use before is not counted when it is freed
                )
                figures[key] = {"seconds": min(times), "peak_bytes": peak_memory(work)}
                last[name] = draws, min(times), float(figures[key]["peak_bytes"])
                print(key, {k: round(v, 4) for k, v in figures[key].items()}, flush=True)
        for name in ("accumulated statistics", "sampled statistics"):
            small, large = (figures[f"{count} weights, {name}, M = {m}"] for m in (1, 1000))
            if isinstance(large, dict):
                key = f"{count} weights, {name}, M = 1000 to M = 1"
                figures[key] = {measure: large[measure] / small[measure] for measure in small}
        turns = race({str(m): works(m, weight)["sampled statistics"] for m in (1, 1000)}, TURNS)
        key = f"{count} weights, sampled statistics, in turns"
        figures[key] = timing("M = 1000", turns["1000"], turns["1"])
        print(key, figures[key], flush=True)
    return figures


def families(clock: Callable[[], float]) -> dict[str, Any]:
    """Compare M = 1000 with M = 1 for families whose time does not grow with M, in turns."""
    figures: dict[str, Any] = {}
    for posterior in (lb.posteriors.Normal(), lb.posteriors.Radial()):
        weight = weight_of(10**6, posterior)
        turns = race({str(m): lambda m=m, w=weight: estimate(lb.MonteCarlo(m), w) for m in (1, 1000)}, TURNS, clock)
        name = type(posterior).__name__
        figures[name] = timing("M = 1", turns["1"], turns["1"]) | timing("M = 1000", turns["1000"], turns["1"])
        print(name, figures[name], flush=True)
    return figures


def nets(names: list[str], rounds: int) -> dict[str, Any]:
    """Compare a training step with M = 100 and one with M = 1, in turns."""
    figures: dict[str, Any] = {}
    x, y = torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))
    for name in names:
        torch.manual_seed(0)
        model: nn.Module = model_named(name, in_channels=3, classes=10, size=(32, 32))
        for posterior in (lb.posteriors.Normal(0.01), lb.posteriors.Radial(0.01)):
            steps = {}
            for draws in (1, 100):
                bnn = lb.Bayesian(model, posterior=posterior, kl=lb.MonteCarlo(draws))
                steps[f"M = {draws}"] = stepper(
                    bnn.train(), x, y
                )  # untrained networks need the statistics of the batch
            times = race(steps, rounds)
            key = f"{name}, {type(posterior).__name__}"
            figures[key] = timing("M = 100", times["M = 100"], times["M = 1"])
            print(key, figures[key], flush=True)
    return figures


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nets", nargs="*", default=["densenet121", "vgg16", "resnet50"])
    parser.add_argument(
        "--cpu-time", action="store_true", help="on a busy machine: one thread, seconds of the processor"
    )
    parser.add_argument("--only", choices=["weights", "families", "nets"], nargs="+", help="by default all")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.cpu_time:
        torch.set_num_threads(1)
    torch.manual_seed(0)
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "weights": lambda: weights(options.rounds),
        "families": lambda: families(time.process_time if options.cpu_time else time.perf_counter),
        "nets": lambda: nets(options.nets, options.rounds),
    }
    results = {name: measure() for name, measure in parts.items() if not options.only or name in options.only}
    out = options.out or RESULTS / ("_".join(["kl", *(options.only or [])]) + ".json")
    write(out, results, {"rounds": options.rounds, "prior": "N(0, 1)", "cpu_time": options.cpu_time})


if __name__ == "__main__":
    main()
