"""Do many draws for the KL make a better network? 003's figure 8 and table 2 at the size of two cores.

LeNet on MNIST with a Radial posterior, started from a plain net and trained on the ELBO with M = 1 or M = 100 draws for
the KL; the replications differ in everything that is random. For each threshold: accuracy of the test images of which
the network is at least that sure, and their share.

    python benchmarks/kl_replications.py --data-dir DIRECTORY [--replications 6] [--images 4000]
"""

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from scipy import stats
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from harness import RESULTS, write
from leanbayes.data.digits import mnist
from leanbayes.evaluate import confidence_set, nll
from leanbayes.models import lenet5

THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.99)
DRAWS = (1, 100)


def replication(seed: int, draws: int, data: Any, epochs: int, kl_weight: float) -> dict[str, Any]:
    """Train one network and ask it."""
    train, (x, y) = data
    torch.manual_seed(seed)
    loader = DataLoader(TensorDataset(*train), batch_size=64, shuffle=True)
    model = lenet5(1, 10)
    lb.fit(model, loader, likelihood=lb.Categorical(), epochs=epochs, lr=1e-3)
    bnn = lb.Bayesian(model, posterior=lb.Radial(0.5), kl=lb.MonteCarlo(draws, statistics="sampled"))
    lb.fit(bnn, loader, likelihood=lb.Categorical(), epochs=epochs, lr=1e-3, kl_weight=kl_weight)
    said = lb.predict(bnn, x, samples=32, generator=torch.Generator().manual_seed(seed)).mean
    found = {"seed": seed, "draws": draws, "nll": float(nll(said, y)), "accuracy": [], "size": []}
    for threshold in THRESHOLDS:
        accuracy, size = confidence_set(said, y, threshold)
        found["accuracy"].append(float(accuracy))
        found["size"].append(float(size))
    print(found, flush=True)
    return found


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Means and deviations by threshold, t-tests of the accuracy, F-tests of the variance of the size."""
    found: dict[str, Any] = {}
    for place, threshold in enumerate(THRESHOLDS):
        few, many = ([run for run in runs if run["draws"] == draws] for draws in DRAWS)
        accuracy, size = (
            [[run[name][place] for run in group] for group in (few, many)] for name in ("accuracy", "size")
        )
        variances = [torch.tensor(values).var().item() for values in size]
        ratio = variances[1] / max(variances[0], 1e-12)
        freedom = len(size[0]) - 1
        found[str(threshold)] = {
            "accuracy_M1": torch.tensor(accuracy[0]).mean().item(),
            "accuracy_M100": torch.tensor(accuracy[1]).mean().item(),
            "accuracy_p": float(stats.ttest_rel(accuracy[1], accuracy[0]).pvalue),
            "size_deviation_M1": variances[0] ** 0.5,
            "size_deviation_M100": variances[1] ** 0.5,
            "size_variance_ratio_p_one_sided": float(stats.f.cdf(ratio, freedom, freedom)),
        }
    return found


def main() -> None:
    """Train all, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default=os.environ.get("LEANBAYES_DATA", "data"))
    parser.add_argument("--replications", type=int, default=6)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--kl-weight", type=float, default=0.1)
    parser.add_argument("--out", type=Path, default=RESULTS / "kl_replications.json")
    options = parser.parse_args()
    task = mnist(options.data_dir).task("lenet5")
    data = task.train[: options.images], task.test[:4000]
    runs = [
        replication(seed, draws, data, options.epochs, options.kl_weight)
        for seed in range(options.replications)
        for draws in DRAWS
    ]
    settings = {name: value for name, value in vars(options).items() if name not in ("out", "data_dir")}
    write(options.out, {"summary": summary(runs), "runs": runs}, settings | {"data": "MNIST"})


if __name__ == "__main__":
    main()
