"""Measure what predictions cost, in the same run as a plain pass of the network in eval mode and without gradients.

- networks: for U-Nets, a small CNN, LeNet-5, ResNet-18 and a vision transformer, `predict` of the plain model, one pass
  of `moments`, and `predict` in one pass.

The other parts measure a ResNet-18 on 32x32 images:

- predict: one pass of `moments`, with every weight random and with 1 % of them, compared with a plain pass of the model
  and with a plain pass in channels_last, which is the layout that `moments` uses on the CPU.
- step: elbo, backward and SGD with momentum under "moments", with the statistics of batch norm fixed as in `fit`.
- memory: by how much a step, and a prediction, raise the memory of tensors.
- samples: 20 draws of `predict`.
- covariance: the full covariance, which the predecessor of VDP++ carries, on the LeNet of its MNIST experiments.

    python benchmarks/moments_cost.py [--batch 64] [--rounds 8] [--only networks] [--threads 2] [--cpu-time]

On a busy machine, ``--threads 1 --cpu-time`` counts the seconds of the processor instead of those of the clock.
"""

import argparse
import copy
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
from leanbayes.lab.models import lenet5, resnet18, unet, vit

SAMPLES = 20
SUBSPACES = {"all random": lb.everything(), "1 % random": lb.random_k(0.01)}

EXACT = lb.propagate.Moments(kernels="exact")
INDEPENDENT = lb.propagate.Moments(rank=0)
TRAINING = lb.propagate.Moments().lean()


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
    "small CNN": (lambda: small_cnn(norm=False), (1, 28, 28), (1, 16, 100, 500), lb.Categorical()),
    "small CNN, batch norm": (lambda: small_cnn(norm=True), (1, 28, 28), (1, 16, 100, 500), lb.Categorical()),
    "LeNet-5": (lambda: lenet5(1, 10), (1, 28, 28), (1, 16, 100, 500), lb.Categorical()),
    "ResNet-18": (lambda: resnet18(10, 3), (3, 32, 32), (1, 16, 64), lb.Categorical()),
    "ViT": (lambda: vit(3, 10), (3, 32, 32), (1, 16, 64), lb.Categorical()),
}
"""For each network: how it is built, the shape of an image, the sizes of batches, and what its outputs mean."""


def networks(rounds: int, cpu_time: bool) -> dict[str, Any]:
    """Measure, for each network and batch, what predictions cost in plain passes."""
    figures: dict[str, Any] = {}
    for name, (make, shape, batches, likelihood) in NETWORKS.items():
        plain = make().eval()
        bnn = lb.Bayesian(copy.deepcopy(plain), posterior=lb.posteriors.Normal(0.01), predict_by="moments").eval()
        for batch in batches:
            x = torch.randn(batch, *shape)
            works: dict[str, Callable[[], object]] = {
                "plain": without_gradients(lambda model=plain, x=x: model(x)),
                "predict, plain model": lambda model=plain, x=x, law=likelihood: lb.predict(model, x, likelihood=law),
                "moments": without_gradients(lambda bnn=bnn, x=x: lb.moments(bnn, x)),
                "predict, one pass": lambda bnn=bnn, x=x, law=likelihood: lb.predict(bnn, x, likelihood=law),
            }
            times = race(works, rounds, time.process_time if cpu_time else time.perf_counter)
            row = {work: min(taken) / min(times["plain"]) for work, taken in times.items() if work != "plain"}
            figures[f"{name}, batch {batch}"] = {"plain_seconds": min(times["plain"]), **row}
            print(f"{name}, batch {batch}:", {work: round(ratio, 2) for work, ratio in row.items()}, flush=True)
    return figures


def without_gradients(function: Callable[[], object]) -> Callable[[], object]:
    """Return the same work without gradients."""
    return torch.no_grad()(function)


def predictions(plain: nn.Module, bayesian: dict[str, lb.Bayesian], x: Tensor, rounds: int) -> dict[str, Any]:
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
    times = race({name: without_gradients(work) for name, work in works.items()}, rounds)
    figures: dict[str, Any] = {}
    for name, taken in times.items():
        figures |= timing(name, taken, times["plain"])
        figures[f"{name}_ratio_to_channels_last"] = min(taken) / min(times["plain, channels_last"])
    return figures


def samples_against_moments(bnn: lb.Bayesian, x: Tensor, rounds: int) -> dict[str, float]:
    """Compare 20 draws with one pass of moments."""
    bnn.eval()
    times = race(
        {
            "moments": lambda: lb.predict(bnn, x, by="moments"),
            "20 samples": lambda: lb.predict(bnn, x, samples=SAMPLES, by="sample", method="loop"),
        },
        rounds,
    )
    return timing("20 samples", times["20 samples"], times["moments"])


def steps(plain: nn.Module, bayesian: dict[str, lb.Bayesian], x: Tensor, y: Tensor, rounds: int) -> dict[str, Any]:
    """Measure one training step of every kind in turns: seconds, and ratios to the plain step."""
    works = {"plain": stepper(plain.train(), x, y)}
    for name, bnn in bayesian.items():
        lb.fix_statistics(bnn.train())
        bnn.propagate, bnn.predict_by = TRAINING, "moments"
        works[name] = stepper(bnn, x, y)
    times = race(works, rounds)
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
    bnn.propagate, bnn.predict_by = TRAINING, "moments"
    figures = {"step_plain": peak_memory(step(plain)) + size(plain), "step_moments": peak_memory(step(bnn)) + size(bnn)}
    plain.eval(), bnn.eval()
    figures["predict_plain"] = peak_memory(without_gradients(lambda: plain(x))) + size(plain)
    figures["predict_moments"] = peak_memory(without_gradients(lambda: lb.moments(bnn, x))) + size(bnn)
    for kind in ("step", "predict"):
        figures[f"{kind}_ratio"] = figures[f"{kind}_moments"] / figures[f"{kind}_plain"]
    return figures


def covariance(batch: int, rounds: int) -> dict[str, Any]:
    """Measure the full covariance on a small CNN; the paper reports ten times the time and memory of VDP++."""
    x = torch.rand(batch, 1, 28, 28)
    plain = lenet5(1, 10).eval()
    bnn = lb.Bayesian(copy.deepcopy(plain), posterior=lb.posteriors.Normal(0.01)).eval()
    works = {
        "plain": lambda: plain(x),
        "moments": lambda: lb.moments(bnn, x),
        "covariance": lambda: lb.covariance(bnn, x),
    }
    times = race({name: without_gradients(work) for name, work in works.items()}, rounds)
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
    parser.add_argument("--only", choices=["networks"], help="measure this part alone")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--cpu-time", action="store_true", help="count seconds of the processor; takes one thread")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.cpu_time and options.threads != 1:
        parser.error("--cpu-time adds up the seconds of all threads; give --threads 1 too")
    out = options.out or RESULTS / ("predict_cost.json" if options.only else "moments_cost.json")
    settings = {"rounds": options.rounds, "threads": options.threads, "cpu_time": options.cpu_time}
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    if options.only:
        write(out, {"networks": networks(options.rounds, options.cpu_time)}, settings)
        return
    x, y = torch.randn(options.batch, 3, 32, 32), torch.randint(0, 10, (options.batch,))
    plain = resnet18(10, 3)
    bayesian = {
        name: lb.Bayesian(copy.deepcopy(plain), subspace=subspace, posterior=lb.posteriors.Normal(0.01)).eval()
        for name, subspace in SUBSPACES.items()
    }
    every = bayesian["all random"]
    results = {
        "predict": predictions(plain, bayesian, x, options.rounds),
        "samples": samples_against_moments(every, x, max(2, options.rounds // 3)),
        "step": steps(plain, bayesian, x, y, options.rounds),
        "memory": memory(plain, every, x, y),
        "covariance": covariance(16, options.rounds),
    }
    for part, figures in results.items():
        print(part, {name: round(value, 3) for name, value in figures.items() if "ratio" in name})
    results["networks"] = networks(options.rounds, options.cpu_time)
    write(out, results, settings | {"batch": options.batch, "model": "resnet18, 32x32"})


if __name__ == "__main__":
    main()
