"""Compare two ways in which IVON can train the coordinates that are not random: Adam, and its own step without noise.

A coordinate without noise has no estimate of its curvature. Its natural-gradient step is therefore the momentum times
α (h₀ + δ)/(h + δ), where h is the mean curvature of the random coordinates in the same tensor, or h₀ if there are none.
Each way gets its own learning rate, chosen by the mean validation NLL over the seeds. The network is a small CNN with
batch norm on Fashion-MNIST. The test set is never read.

- norms: all weights but those of the batch norms are random, from random initial weights.
- 1 %: the most sensitive 1 % of a network that Adam has trained for as many epochs.

    python benchmarks/ivon_others.py --data-dir DIRECTORY [--seeds 3] [--epochs 6]
"""

import argparse
import copy
import statistics
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from harness import RESULTS, write
from leanbayes.lab.data import mnist

TRAIN, VALIDATION, BATCH = 5_000, 2_000, 100
ALPHA, TEMPERATURE, SCALE = 0.2, 1 / 3, 0.03
ADAM_RATES = (1e-3, 3e-3)
NATURAL_RATES = (0.05, 0.2)


class WithoutNoise(lb.optim.IVON):
    """IVON whose coordinates that are not random make the preconditioned step with ``plain_lr`` as α."""

    def _adam_steps(self) -> None:
        scales = {id(target.tensor.rho) for target in self._targets}
        for group in self.param_groups:
            rate = group["plain_lr"] * group["lr"] / group["start_lr"]
            for parameter in group["params"]:
                target = self._by_mean.get(id(parameter))
                if parameter.grad is None or id(parameter) in scales:
                    continue
                if target is not None and target.tensor.index is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["step"], state["first"] = 0, torch.zeros_like(parameter)
                state["step"] += 1
                state["first"].lerp_(parameter.grad, 1 - group["beta1"])
                factor: Any = 1.0
                if target is not None:
                    decay = target.precision / self._size()
                    mean_curvature = self.state[target.tensor.rho]["curvature"].mean()
                    factor = (self._start(target) + decay) / (mean_curvature + decay)
                parameter.sub_(state["first"] * factor * (rate / (1 - group["beta1"] ** state["step"])))


def network() -> nn.Sequential:
    """Return an untrained network; modules 1, 4 and 8 are its batch norms."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 49, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def bayesian(case: str, model: nn.Module, data: TensorDataset) -> lb.Bayesian:
    """Return the model of a case."""
    if case == "norms":
        subspace = lb.layers("0", "3", "7", "10")
    else:
        subspace = lb.top_k(lb.sensitivity(model, DataLoader(data, batch_size=500), F.cross_entropy), rate=0.01)
    return lb.Bayesian(model, subspace=subspace, propagate="mirrored", predict_by="moments")


def validation_nll(bnn: lb.Bayesian, x: Tensor, y: Tensor) -> float:
    """Return the NLL of predictions in one pass of moments."""
    parts = [lb.predict(bnn, part, likelihood=lb.Categorical()).mean for part in x.split(500)]
    return F.nll_loss(torch.cat(parts).clamp_min(1e-12).log(), y).item()


def choices(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the best learning rate of each way, and the NLL of all its seeds."""
    best: dict[str, Any] = {}
    for case, way, rate in dict.fromkeys((row["case"], row["way"], row["plain_lr"]) for row in rows):
        values = [
            row["validation_nll"] for row in rows if (row["case"], row["way"], row["plain_lr"]) == (case, way, rate)
        ]
        found = {"plain_lr": rate, "mean": statistics.mean(values), "seeds": values}
        name = f"{case}, {way}"
        if name not in best or found["mean"] < best[name]["mean"]:
            best[name] = found
    return best


def main() -> None:
    """Train every case in both ways, and write the validation scores."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--out", type=Path, default=RESULTS / "ivon_others.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    images, labels = mnist(options.data_dir, name="FashionMNIST").train[:]
    rows: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[: TRAIN + VALIDATION]
        x, y = images[order].float(), labels[order]
        data, held = TensorDataset(x[:TRAIN], y[:TRAIN]), (x[TRAIN:], y[TRAIN:])
        torch.manual_seed(seed)
        fresh = network()
        trained = copy.deepcopy(fresh)
        train(trained, data, lb.Optimization("adam", lr=2e-3, schedule="cosine"), options.epochs, seed)
        for case, start in (("norms", fresh), ("1 %", trained)):
            for way, rates in (("adam", ADAM_RATES), ("without noise", NATURAL_RATES)):
                for rate in rates:
                    bnn = bayesian(case, copy.deepcopy(start), data)
                    kind = lb.optim.IVON if way == "adam" else WithoutNoise
                    steps = options.epochs * TRAIN // BATCH
                    settings = {"n_data": TRAIN, "temperature": TEMPERATURE, "initial_scale": SCALE, "steps": steps}
                    optimizer = kind(bnn, ALPHA, plain_lr=rate, **settings)
                    train(bnn, data, lb.Optimization(optimizer, schedule="warmup_cosine"), options.epochs, seed)
                    row = {"seed": seed, "case": case, "way": way, "plain_lr": rate}
                    rows.append(row | {"validation_nll": validation_nll(bnn, *held)})
                    print(rows[-1], flush=True)
    settings = {"data": f"Fashion-MNIST, {TRAIN} images to train, {VALIDATION} to validate", "alpha": ALPHA}
    settings |= {"temperature": TEMPERATURE, "initial_scale": SCALE, "batch": BATCH, "epochs": options.epochs}
    write(options.out, {"best": choices(rows), "runs": rows}, settings | {"seeds": options.seeds})


def train(model: nn.Module, data: TensorDataset, how: lb.Optimization, epochs: int, seed: int) -> None:
    """Train a model."""
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    lb.fit(model, loader, likelihood=lb.Categorical(), epochs=epochs, optimizer=how, seed=seed)


if __name__ == "__main__":
    main()
