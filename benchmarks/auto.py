"""Compare ``samples="auto"`` with 32 draws at the same accuracy of the entropy, on the test set of a trained model.

A small CNN learns MNIST. Then 1 % of its weights become random and are trained as Abboud et al. 2024 do it, with a KL
weight from 0.2 to 0.01. The benchmark searches for the tolerance at which "auto" has the same root mean squared error
as 32 draws, compared with a long run. All inputs of a run share its draws, so errors are means over repeats. The errors
in the record are measured again after the search, because the search prefers lucky draws. Both are timed in turns.

    python benchmarks/auto.py --data-dir DIRECTORY        # with MNIST/raw/*.gz in it, in the official layout
"""

import argparse
import gzip
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from harness import RESULTS, race, write
from leanbayes.metrics import accuracy


def idx(path: Path) -> Tensor:
    """Read an array in MNIST's gzipped idx format."""
    with gzip.open(path) as file:
        data = file.read()
    shape = [int.from_bytes(data[4 + 4 * axis : 8 + 4 * axis], "big") for axis in range(data[3])]
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape).copy())


def mnist(folder: Path, part: str) -> TensorDataset:
    """Read images in [0, 1] and their labels."""
    raw = folder / "MNIST" / "raw"
    images, labels = idx(raw / f"{part}-images-idx3-ubyte.gz"), idx(raw / f"{part}-labels-idx1-ubyte.gz")
    return TensorDataset(images[:, None].float() / 255, labels.long())


def small_cnn() -> nn.Module:
    """Build two convolutions with batch norm, followed by two linear layers."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1568, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def train(model: nn.Module, data: TensorDataset, epochs: int, kl_weights: tuple[float, float]) -> None:
    """Train with Adam on the ELBO."""
    groups = model.parameter_groups(scale_lr=1e-2) if isinstance(model, lb.Bayesian) else model.parameters()
    optimizer = torch.optim.Adam(groups, lr=1e-3)
    lb.fix_statistics(model.train()) if isinstance(model, lb.Bayesian) else model.train()
    weight = lb.anneal(*kl_weights)
    for epoch in range(epochs):
        for x, y in DataLoader(data, batch_size=128, shuffle=True):
            optimizer.zero_grad()
            kl_weight = weight(epoch / epochs)
            lb.elbo(model, x, y, lb.Categorical(), n_data=len(data), kl_weight=kl_weight).loss.backward()
            optimizer.step()


def main() -> None:
    """Train, search for the tolerance, measure, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("LEANBAYES_DATA", "data"))
    parser.add_argument("--train", type=int, default=60_000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--kl-weights", type=float, nargs=2, default=(0.2, 0.01))
    parser.add_argument("--reference", type=int, default=1000)
    parser.add_argument("--test", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=250)
    parser.add_argument("--repeats", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "auto.json")
    options = parser.parse_args()
    torch.manual_seed(0)
    data, (x, y) = mnist(Path(options.data_dir), "train"), mnist(Path(options.data_dir), "t10k")[: options.test]
    data = TensorDataset(*data[: options.train])
    model = small_cnn()
    train(model, data, options.epochs, options.kl_weights)
    scores = lb.sensitivity(model, DataLoader(data, batch_size=128), F.cross_entropy, n_batches=50)
    bnn = lb.Bayesian(model, subspace=lb.top_k(scores, rate=0.01))
    train(bnn, data, options.epochs, options.kl_weights)

    truth = lb.predict(bnn, x, samples=options.reference, batch_size=options.batch)

    def work(samples: Any, tolerance: float = 1.0) -> lb.Prediction:
        return lb.predict(bnn, x, samples=samples, tolerance=tolerance, batch_size=options.batch)

    def error(samples: Any, tolerance: float = 1.0) -> tuple[float, float, float]:
        """Return the root mean squared error over inputs and repeats, its standard error, and the mean of the draws."""
        predictions = [work(samples, tolerance) for _ in range(options.repeats)]
        squares = torch.stack([(prediction.total - truth.total).square().mean() for prediction in predictions])
        rms = squares.mean().sqrt().item()
        spread = (squares.std() / math.sqrt(len(squares))).item() / (2 * rms)
        return rms, spread, torch.stack([p.draws.float().mean() for p in predictions]).mean().item()

    fixed = error(32)
    print(f"accuracy {accuracy(truth.mean, y):.4f}, error of 32 draws {fixed[0]:.5f} +- {fixed[1]:.5f}")
    tolerance, auto = 0.024, (math.inf, 0.0, 0.0)
    while auto[0] > fixed[0]:
        tolerance *= 0.93
        auto = max(
            error("auto", tolerance), error("auto", tolerance)
        )  # the worse of two, because one alone may be lucky
        print(f"auto at {tolerance:.4f}: error {auto[0]:.5f} +- {auto[1]:.5f}, {auto[2]:.2f} draws")
    fixed, auto = error(32), error("auto", tolerance)  # again, because the search prefers lucky draws
    times = race({"32 draws": lambda: work(32), "auto": lambda: work("auto", tolerance)}, options.rounds)
    draws = work("auto", tolerance).draws
    results = {
        "accuracy": accuracy(truth.mean, y).item(),
        "tolerance": tolerance,
        "mean_entropy": truth.total.mean().item(),
        "rms_error_32": fixed[0],
        "rms_error_32_standard_error": fixed[1],
        "rms_error_auto": auto[0],
        "rms_error_auto_standard_error": auto[1],
        "mean_draws_auto": auto[2],
        "share_at_minimum": (draws == draws.min()).float().mean().item(),
        "seconds_32": min(times["32 draws"]),
        "seconds_auto": min(times["auto"]),
        "times_cheaper": min(times["32 draws"]) / min(times["auto"]),
    }
    print(results)
    write(
        options.out,
        results,
        {name: str(value) for name, value in vars(options).items() if name not in ("out", "data_dir")},
    )


if __name__ == "__main__":
    main()
