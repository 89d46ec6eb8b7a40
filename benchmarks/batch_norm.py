"""Compare propagations in a network with batch norm, on the digits of the demo.

Batch norm in training mode normalises away a draw that the whole batch shares, but not draws that differ within it.

    python benchmarks/batch_norm.py [--seeds 5]
"""

import argparse
import copy
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import leanbayes as lb
from harness import RESULTS, ROOT, write

sys.path.insert(0, str(ROOT / "examples"))
from digits import digits, measure, small_cnn, train

WAYS = [("sample", True), ("sample", False), ("mirrored", False), ("flipout", False)]


def main() -> None:
    """Train, measure, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--out", type=Path, default=RESULTS / "batch_norm.json")
    options = parser.parse_args()
    rows = []
    for seed in range(options.seeds):
        torch.manual_seed(seed)
        data, x, y, shifts = digits(seed)
        model = small_cnn()
        train(model, data, options.epochs, seed)
        scores = lb.sensitivity(model, DataLoader(data, batch_size=64), F.cross_entropy)
        for propagate, held in WAYS:
            random = lb.top_k(scores, rate=0.01)
            bnn = lb.Bayesian(copy.deepcopy(model), subspace=random, propagate=propagate, predict_by="sample")
            train(bnn, data, options.epochs, seed, hold_statistics=held)
            quality, _ = measure(bnn, x, y, shifts)
            way = {"seed": seed, "propagate": propagate, "statistics_held": held}
            rows.append(way | {"accuracy": quality[0], "nll": quality[1]})
            print(rows[-1])
    settings = {"data": "scikit-learn digits, 300 for training", "rate": 0.01, "prior": "N(0, 1)", "kl_weight": 1.0}
    write(options.out, rows, settings | {"epochs": options.epochs, "seeds": options.seeds})


if __name__ == "__main__":
    main()
