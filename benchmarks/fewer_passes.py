"""How many passes give the error of 32 independent draws? Writes docs/results/fewer_passes.json.

    python benchmarks/fewer_passes.py --data-dir DIRECTORY [DIRECTORY ...] [--tasks lenet cnn resnet unet]

Each task trains a network of which 1 % of the weights are random (the recipe ``partial`` with its defaults), and
compares predictions for some test images with a long run. The errors are those of the probabilities, of the total
uncertainty and of the epistemic one: root mean square and mean absolute, over images and repeats, because all images of
a repeat share its draws. The error of the NLL is its root mean square over repeats. The error of a method falls with
the number of its passes; the number at which it reaches the error of 32 independent draws is interpolated on
logarithmic axes. For "auto" the tolerance is halved until the error is reached. No setting is chosen by targets.

A "first-order draw" replaces the network by its tangent at the means: a draw μ + Δ has the outputs f(μ) + J Δ. Its rows
count draws and not passes, because such a draw costs another time than a pass; the entry "seconds_of_a_draw" has the
times as multiples of a plain pass (processor time of one thread). However many draws there are, the curvature of the
network is missing, so the record also has the errors of as many first-order draws as the long run has passes.

The record is written after each method, and what it holds is not measured again. The networks are kept in
``out/fewer_passes``.
"""

import argparse
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, linearize

import leanbayes as lb
from harness import RESULTS, ROOT, write
from leanbayes.lab.data import Source, load_data
from leanbayes.lab.models.architectures.lenet import lenet5
from leanbayes.lab.models.architectures.unet import unet
from leanbayes.lab.recipes import Budget, Run, parse, prepare
from leanbayes.propagate import Moments, Propagation, Sample
from leanbayes.propagate.propagation import Weights
from leanbayes_papers.training import small_task
from promise_networks import Residual, trial_cnn

OUT = RESULTS / "fewer_passes.json"
NETWORKS = Path(os.environ.get("FEWER_PASSES_NETWORKS", ROOT / "out" / "fewer_passes"))
ERRORS = ("mean_rms", "mean_mae", "total_rms", "total_mae", "epistemic_rms", "epistemic_mae", "nll_rms")


@dataclass(frozen=True)
class Points(Sample):
    """Draws made of points in the unit cube: their Normal quantiles are the noise."""

    name: ClassVar[str] = "points"
    count: int = 4
    kind: str = "latin"

    def noises(self, weights: Weights, generator: torch.Generator | None) -> Iterator[dict[str, Tensor]]:
        """Yield ``count`` rows."""
        sizes = [weight.count for weight in weights.values()]
        rows = torch.special.ndtri(self.cube(sum(sizes), generator).clamp(1e-6, 1 - 1e-6))
        for row in rows:
            yield dict(zip(weights, row.split(sizes), strict=True))

    def cube(self, columns: int, generator: torch.Generator | None) -> Tensor:
        """Return a Latin hypercube, or scrambled Sobol points."""
        if self.kind == "sobol":
            seed = int(torch.randint(2**31, (), generator=generator))
            return torch.quasirandom.SobolEngine(columns, scramble=True, seed=seed).draw(self.count)
        cells = torch.rand(self.count, columns, generator=generator).argsort(0)
        return (cells + torch.rand(self.count, columns, generator=generator)) / self.count

    @property
    def group(self) -> int:
        """All of them belong together."""
        return self.count


def residual() -> nn.Module:
    """Make a residual network with batch norm for images of 28x28."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), Residual(16),
        nn.Conv2d(16, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), Residual(32),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


@dataclass(frozen=True)
class Experiment:
    """A data set, how many examples train, validate and test, a network, the epochs and the size of a batch."""

    data: str
    counts: tuple[int | None, int | None, int | None]
    model: Callable[[], nn.Module]
    epochs: int
    batch_size: int = 100


EXPERIMENTS = {
    "lenet": Experiment("fashion-mnist", (20_000, 2_000, 1_000), lambda: lenet5(1, 10, (28, 28)), 10),
    "cnn": Experiment("mnist", (20_000, 2_000, 1_000), trial_cnn, 8),
    "resnet": Experiment("fashion-mnist", (20_000, 2_000, 1_000), residual, 8),
    "unet": Experiment("lesions", (None, None, None), lambda: unet(1, 2), 12, 16),
}

METHODS: dict[str, Callable[[int], Propagation]] = {
    "independent draws": lambda _: Sample(),
    "one balanced group": lambda passes: Sample(balanced=passes),
    "pairs": lambda _: Sample(balanced=2),
    "latin hypercube": lambda passes: Points(count=passes),
    "scrambled sobol": lambda passes: Points(count=passes, kind="sobol"),
}


def main() -> None:
    """Measure the tasks that the record does not hold, and write it after each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data-dir", nargs="+", required=True, help="folders in which the data sets are looked for")
    parser.add_argument("--tasks", nargs="+", default=list(EXPERIMENTS), choices=list(EXPERIMENTS))
    parser.add_argument("--images", type=int, default=60)
    parser.add_argument("--reference", type=int, default=320)
    parser.add_argument("--passes", type=int, nargs="+", default=[4, 8, 32])
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    settings = {name: getattr(options, name) for name in ("images", "reference", "passes", "repeats")}
    for name in options.tasks:
        entry = _read(options.out).get(name, {})
        if entry.get("settings", settings) != settings or "passes_for_the_error_of_32" in entry:
            continue
        for unit in _measured(*_network(name, options.data_dir, options.images), options, entry):
            record = _read(options.out) | {name: unit | {"settings": settings}}  # another process may have written
            write(options.out, record, {})


def _read(out: Path) -> dict[str, Any]:
    return dict(json.loads(out.read_text())["results"]) if out.exists() else {}


def _source(name: str, folders: list[str]) -> Source:
    for folder in folders:
        try:
            return load_data(name, folder)
        except lb.errors.LeanBayesError as error:
            problem = error
    raise problem


def _network(name: str, folders: list[str], images: int) -> tuple[nn.Module, Tensor, Tensor]:
    """Return the trained network and some test images with their targets."""
    experiment, file = EXPERIMENTS[name], NETWORKS / f"{name}.lb"
    torch.manual_seed(0)
    task = small_task(_source(experiment.data, folders), experiment.counts, experiment.model)
    x, y = task.test.tensors
    if file.exists():
        return lb.load(file, experiment.model()), x[:images], y[:images]
    budget = Budget(experiment.epochs, experiment.batch_size, lr=2e-3, schedule="cosine")
    predictor = prepare(parse("partial"), task, Run(budget, 0)).predictor
    NETWORKS.mkdir(parents=True, exist_ok=True)
    lb.save(predictor, file)
    return predictor, x[:images], y[:images]


def _measured(
    bnn: nn.Module, x: Tensor, y: Tensor, options: argparse.Namespace, known: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield what is known after each method, and at last what follows from all."""
    methods: dict[str, list[dict[str, float]]] = known.get("errors", {})
    generator = torch.Generator().manual_seed(1)
    truth = lb.predict(bnn, x, by=Sample(balanced=4), samples=options.reference, method="loop", generator=generator)

    def errors(repeats: int, **settings: Any) -> dict[str, float]:
        predictions = [lb.predict(bnn, x, method="loop", generator=generator, **settings) for _ in range(repeats)]
        found = _errors(predictions, truth, y)
        return found | {"passes": torch.stack([p.draws.double().mean() for p in predictions]).mean().item()}

    unit = known | {
        "random_weights": sum(weight.count for weight in bnn.weights().values()),
        "total": truth.total.mean().item(),
        "epistemic": truth.epistemic.mean().item(),
        "errors": methods,
    }
    for method, by in METHODS.items():
        if method not in methods:
            methods[method] = [
                errors(max(4, options.repeats * min(1, 16 // passes)), by=by(passes), samples=passes)
                for passes in options.passes
            ]
            yield unit
    if isinstance(bnn, lb.Bayesian) and "first-order draws" not in methods:
        first_order = FirstOrder(bnn, x)
        methods["first-order draws"] = [
            _errors([first_order.predict(draws, generator) for _ in range(4)], truth, y) | {"passes": float(draws)}
            for draws in (*options.passes, options.reference)
        ]
        unit["seconds_of_a_draw"] = first_order.seconds(generator)
        yield unit
    last = methods["independent draws"][-1]
    for method, draws in (("auto", Sample()), ("auto with pairs", Sample(balanced=2))):
        rows: list[dict[str, float]] = methods.pop(method, [])
        tolerance = rows[-1]["tolerance"] if rows else 0.64
        while tolerance > 0.008 and (not rows or rows[-1]["total_rms"] > last["total_rms"]):
            tolerance /= 2
            found = errors(options.repeats, by=draws, samples="auto", tolerance=tolerance, max_samples=128)
            rows.append(found | {"tolerance": tolerance})
        methods[method] = rows
        yield unit
    passes = {"the plain network": _AtTheMean(), "moments": Moments(), "moments of rank 0": Moments(rank=0)}
    one_pass = {name: errors(1, by=by, samples=32) | {"passes": 1.0} for name, by in passes.items()}
    needed = {
        method: {error: _needed(rows, error, last[error]) for error in ERRORS} for method, rows in methods.items()
    }
    yield unit | {"errors_of_one_pass": one_pass, "passes_for_the_error_of_32": needed}


class FirstOrder:
    """The tangent of a network at its means, for some inputs: f(μ + Δ) ≈ f(μ) + J Δ."""

    def __init__(self, bnn: lb.Bayesian, x: Tensor) -> None:
        self.bnn, self.x, self.model = bnn, x, bnn.model.eval()
        self.means = {name: parameter.detach() for name, parameter in self.model.named_parameters()}
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.func builds a graph, and warns of a name in it
            self.at_means, self.tangent = linearize(self.outputs, self.means)

    def outputs(self, weights: dict[str, Tensor]) -> Tensor:
        """Return the logits of the network with these weights."""
        return functional_call(self.model, weights, self.x)

    def change(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Return Δ of one weight draw, which is 0 where weights are not random."""
        drawn = self.bnn.draw(generator=generator)
        return {name: drawn[name].detach() - mean if name in drawn else 0 * mean for name, mean in self.means.items()}

    @torch.no_grad()
    def predict(self, draws: int, generator: torch.Generator) -> SimpleNamespace:
        """Return the mean probabilities, the total and the epistemic uncertainty of so many first-order draws."""
        logits = [self.at_means + self.tangent(self.change(generator)) for _ in range(draws)]
        log_p = torch.stack(logits).log_softmax(2)
        mean = log_p.exp().mean(0)
        total = -torch.special.xlogy(mean, mean).sum(1)
        return SimpleNamespace(mean=mean, total=total, epistemic=total + (log_p.exp() * log_p).sum(2).mean(0))

    @torch.no_grad()
    def seconds(self, generator: torch.Generator, rounds: int = 12) -> dict[str, float]:
        """Return the time of a weight draw and of a first-order draw in two ways, as multiples of a plain pass."""
        change = self.change(generator)
        works: dict[str, Callable[[], object]] = {
            "a plain pass": lambda: self.model(self.x),
            "a weight draw": lambda: self.bnn(self.x),
            "a Jacobian-vector product": lambda: jvp(self.outputs, (self.means,), (change,)),
            "the stored tangent": lambda: self.tangent(change),
        }
        best = dict.fromkeys(works, math.inf)
        for _ in range(rounds):
            for name, work in works.items():
                begin = time.process_time()
                work()
                best[name] = min(best[name], time.process_time() - begin)
        return {name: value / best["a plain pass"] for name, value in best.items()}


@dataclass(frozen=True)
class _AtTheMean(Sample):
    name: ClassVar[str] = "at the mean"

    @property
    def group(self) -> int:
        """The noise is not random."""
        return 2

    def noises(self, weights: Weights, generator: torch.Generator | None) -> Iterator[dict[str, Tensor]]:
        """Yield zeros."""
        while True:
            yield {name: 0 * values for name, values in next(super().noises(weights, generator)).items()}


def _errors(predictions: list[Any], truth: lb.Prediction, y: Tensor) -> dict[str, float]:
    found = {}
    for part in ("mean", "total", "epistemic"):
        error = torch.stack([getattr(p, part) - getattr(truth, part) for p in predictions])
        found[f"{part}_rms"], found[f"{part}_mae"] = error.square().mean().sqrt().item(), error.abs().mean().item()
    nll = torch.stack([_nll(p, y) - _nll(truth, y) for p in predictions])
    return found | {"nll_rms": nll.square().mean().sqrt().item()}


def _nll(prediction: Any, y: Tensor) -> Tensor:
    return -prediction.mean.gather(1, y.long().unsqueeze(1)).clamp_min(1e-12).log().mean()


def _needed(rows: list[dict[str, float]], error: str, target: float) -> float | None:
    """Return the passes at which the error is reached, at least the fewest measured; None if it never is."""
    ordered = sorted(rows, key=lambda row: row["passes"])
    if ordered[0][error] <= target:
        return ordered[0]["passes"]
    for before, after in pairwise(ordered):
        if after[error] <= target:
            share = math.log(before[error] / target) / math.log(before[error] / after[error])
            return float(before["passes"] * (after["passes"] / before["passes"]) ** share)
    return None


if __name__ == "__main__":
    main()
