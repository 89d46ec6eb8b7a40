"""How moments are best scored in training, and what one variance for each filter saves and costs.

Quality: the built-in digits, clean and under sensor noise; recipe "vdp" from the trained network with each likelihood,
and with shared variances; the weight of the KL is chosen for each on the validation set, for their losses differ in
scale. Cost: one pass and one training step of a ResNet-18, every weight random, in turns.

    python benchmarks/moment_likelihoods.py [--seeds 3]
"""

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from harness import RESULTS, race, timing, write
from leanbayes.evaluation.cost import count_parameters
from leanbayes.lab.data import Task, digits
from leanbayes.lab.models import resnet18
from leanbayes.lab.recipes import Budget, Run, parse, prepare
from leanbayes.metrics import accuracy, calibration_error, nll

METHODS = {
    "expected log-softmax, by drawn logits": "likelihood=expected",
    "cross-entropy of the mean": "likelihood=mean",
    "moment likelihood (VDP++, eq. 11 corrected)": "likelihood=moment",
    "expected log-softmax, one variance for each filter": "likelihood=expected,per=filter",
}
KL_WEIGHTS = (0.1, 0.001, 0.0001)
NOISE = 0.25  # of pixels from 0 to 1
BATCH, SIZE = 16, 32


def quality(model: nn.Module, task: Task) -> dict[str, float]:
    """Of predictions for the test digits, clean and noisy, and for the validation set, on which one may choose."""
    x, y = task.test[:]
    noisy = x + NOISE * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    found = {"validation_nll": scores(model, *task.validation[:])["nll"]}
    for name, images in (("", x), ("noisy_", noisy)):
        found |= {name + metric: value for metric, value in scores(model, images, y).items()}
    return found


def scores(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
    """Three metrics."""
    p = lb.predict(model, x, samples=128).mean
    return {"accuracy": accuracy(p, y).item(), "nll": nll(p, y).item(), "ece": calibration_error(p, y).item()}


def qualities(seeds: int, epochs: int) -> list[dict[str, Any]]:
    """Every likelihood with every KL weight, from one plain network a seed."""
    rows: list[dict[str, Any]] = []
    for seed in range(seeds):
        task, nets = digits(seed), {}
        specs = {("plain", None): "deterministic"} | {
            (name, weight): f"vdp:{options},kl_start={weight},kl_end={weight}"
            for name, options in METHODS.items()
            for weight in KL_WEIGHTS
        }
        for (name, weight), spec in specs.items():
            trained = prepare(parse(spec), task, Run(Budget(epochs=epochs), seed, nets=nets))
            rows.append({"method": name, "kl_weight": weight, "seed": seed} | quality(trained.predictor, task))
            print(rows[-1])
    return rows


def chosen(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each method at the KL weight with the lowest validation nll: means over the seeds, and their deviations."""
    found = []
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        weights = dict.fromkeys(row["kl_weight"] for row in own)
        tried = {w: [row for row in own if row["kl_weight"] == w] for w in weights}
        best = min(tried, key=lambda w: statistics.mean(row["validation_nll"] for row in tried[w]))
        line: dict[str, Any] = {"method": method, "kl_weight": best}
        for metric in (key for key in own[0] if key not in ("method", "kl_weight", "seed")):
            values = [row[metric] for row in tried[best]]
            line[metric] = statistics.mean(values)
            line[f"{metric}_deviation"] = statistics.stdev(values) if len(values) > 1 else 0.0
        found.append(line)
    return found


def costs(rounds: int) -> list[dict[str, Any]]:
    """Seconds of a prediction and of a training step, against the plain network's in the same turns."""
    torch.manual_seed(0)
    model = resnet18(num_classes=10)
    x, y = torch.randn(BATCH, 3, SIZE, SIZE), torch.randint(0, 10, (BATCH,))
    nets: dict[str, nn.Module] = {"plain": model}
    for way in ("moments", "local"):
        training = lb.propagate.as_propagation(way).lean()
        for per in ("weight", "filter"):
            posterior = lb.posteriors.Normal(0.01, per=per)
            nets[f"{way}, per {per}"] = lb.Bayesian(model, posterior=posterior, propagate=training, predict_by=way)
    works: dict[str, dict[str, Callable[[], object]]] = {
        "predict": {name: partial(forward, net, x) for name, net in nets.items()},
        "train": {name: partial(step, net, x, y) for name, net in nets.items()},
    }
    rows: list[dict[str, Any]] = [
        {"network": name, "scales": count_parameters(net).scales, "bytes": count_parameters(net).bytes}
        for name, net in nets.items()
    ]
    for work, turns in works.items():
        seconds = race(turns, rounds)
        for row in rows:
            row |= timing(work, seconds[row["network"]], seconds["plain"])
    for row in rows:
        print(row)
    return rows


@torch.no_grad()
def forward(model: nn.Module, x: Tensor) -> object:
    """One pass."""
    model.eval()
    if isinstance(model, lb.Bayesian) and isinstance(model.predict_by, lb.propagate.OnePass):
        return model.predict_by.law(model, x)
    return model(x)


def step(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """The gradients of one loss, the KL with it."""
    model.eval()  # statistics are held, as when random weights are trained
    lb.elbo(model, x, y, lb.Categorical(), n_data=50_000).loss.backward()
    model.zero_grad()


def main() -> None:
    """Train, measure, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=40, help="half of them for the plain network")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "moment_likelihoods.json")
    options = parser.parse_args()
    cost = costs(options.rounds)
    rows = qualities(options.seeds, options.epochs)
    settings = {
        "data": "scikit-learn digits, about 300 for training",
        "noise": NOISE,
        "kl_weights": KL_WEIGHTS,
        "cost": f"ResNet-18, batch {BATCH} of {SIZE}x{SIZE}",
        **{name: getattr(options, name) for name in ("seeds", "epochs", "rounds")},
    }
    best = chosen(rows)
    for line in best:
        print(line)
    write(options.out, {"quality": best, "quality_by_kl_weight": rows, "cost": cost}, settings)


if __name__ == "__main__":
    main()
