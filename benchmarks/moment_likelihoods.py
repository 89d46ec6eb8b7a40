"""Find out how training should score moments, and what one variance for each filter saves and costs.

Quality is measured on the built-in digits, clean and with sensor noise. The recipe "vdp" starts from a trained network,
with each likelihood and with one variance for each filter. The weight of the KL is chosen for each on the validation
set, because their losses differ in scale. Cost is measured on a ResNet-18 whose weights are all random: one pass and
one training step, in turns.

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
    """Score predictions for the test digits, clean and noisy, and for the validation set, which serves for choices."""
    x, y = task.test[:]
    noisy = x + NOISE * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    figures = {"validation_nll": scores(model, *task.validation[:])["nll"]}
    for name, images in (("", x), ("noisy_", noisy)):
        figures |= {name + metric: value for metric, value in scores(model, images, y).items()}
    return figures


def scores(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
    """Return accuracy, NLL and calibration error of predictions from 128 draws of the outputs."""
    p = lb.predict(model, x, samples=128).mean
    return {"accuracy": accuracy(p, y).item(), "nll": nll(p, y).item(), "ece": calibration_error(p, y).item()}


def qualities(seeds: int, epochs: int) -> list[dict[str, Any]]:
    """Train with every likelihood and every KL weight, from one plain network for each seed, and score the results."""
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
    """Return each method at its KL weight of lowest validation NLL: means over the seeds, and standard deviations."""
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        trials = [row for row in rows if row["method"] == method]
        weights = dict.fromkeys(row["kl_weight"] for row in trials)
        tried = {w: [row for row in trials if row["kl_weight"] == w] for w in weights}
        best = min(tried, key=lambda w: statistics.mean(row["validation_nll"] for row in tried[w]))
        line: dict[str, Any] = {"method": method, "kl_weight": best}
        for metric in (key for key in trials[0] if key not in ("method", "kl_weight", "seed")):
            values = [row[metric] for row in tried[best]]
            line[metric] = statistics.mean(values)
            line[f"{metric}_deviation"] = statistics.stdev(values) if len(values) > 1 else 0.0
        lines.append(line)
    return lines


def costs(rounds: int) -> list[dict[str, Any]]:
    """Measure a prediction and a training step in turns with those of the plain network."""
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
    """Run one pass."""
    model.eval()
    if isinstance(model, lb.Bayesian) and isinstance(model.predict_by, lb.propagate.OnePass):
        return model.predict_by.law(model, x)
    return model(x)


def step(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Compute the gradients of one loss, including the KL."""
    model.eval()  # statistics of norms are fixed, as in training with random weights
    lb.elbo(model, x, y, lb.Categorical(), n_data=50_000).loss.backward()
    model.zero_grad()


def main() -> None:
    """Train, measure, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--epochs", type=int, default=40, help="How many epochs to train; the plain network gets half of them."
    )
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
