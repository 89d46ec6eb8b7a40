"""Measure the promises of `leanbayes.conformal` over random splits of data that a network has not been trained on.

One plain network is trained for each data set, and what it predicts for the test images is stored. Then these images
are divided at random, again and again, into a half for the calibration and a half for the test. Given the images, each
division is a new experiment: with continuous scores, the number of covered test images is exactly beta-binomial, over
all images and, with a guarantee for each class, for each class. So its bounds and its mean are known, and the record
says for each class how often it lay within them, with the exact p-value of that count.

    python benchmarks/conformal.py --data-dir DIRECTORY [--only digits breastmnist fashion-mnist lidc]

`lidc` is the part of risk control. Each part writes docs/results/conformal_<part>.json. What is trained is stored, so
that a program that was stopped goes on where it was. `conformal_sizes.py` compares the sizes of methods.
"""

import argparse
import json
import math
import os
import statistics
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import betabinom, binom
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from conformal_sizes import LEVEL, Trainer, halves, mean
from harness import RESULTS, ROOT, write
from leanbayes._files import read_tensors, write_tensors
from leanbayes.conformal import RiskControl, Sets, clopper_pearson, coverage_of
from leanbayes.conformal.coverage import Share
from leanbayes.conformal.quantiles import rank_of
from leanbayes.lab.data.rated import line_up
from leanbayes.lab.data.sets.lidc import lidc
from leanbayes.lab.models import unet

SCORES = ("lac", "aps", "raps")
RATES = {"digits": 2e-3, "breastmnist": 4e-3, "fashion-mnist": 8e-3, "cifar10": 8e-3}
"""The learning rate of each network: the one that `conformal_sizes.py` chose on validation images; digits are easy."""


# ---------------------------------------------------------------- coverage over splits


def coverage(log_p: Tensor, y: Tensor, score: str, per: Any, splits: int) -> dict[str, Any]:
    """Calibrate and test sets on each split, and compare the covered counts with their exact law."""
    covered, sizes = [], []
    overall, by_class = Law(), {label: Law() for label in range(log_p.shape[1])}
    for calibration, test in halves(len(y), splits):
        sets = Sets(nn.Identity(), LEVEL, score, per).calibrate([(log_p[calibration], y[calibration])])
        measured = coverage_of(sets, [(log_p[test], y[test])])
        covered.append(measured.overall.share)
        sizes.append(measured.size)
        counts = torch.bincount(y[calibration], minlength=log_p.shape[1]).tolist()
        if per is None:
            overall.add(measured.overall, len(calibration))
        for label, share in measured.by_class.items():
            by_class[label].add(share, counts[label])
    rows = {label: law.summary(has_law=per == "class") for label, law in by_class.items()}
    result = {"splits": splits, "coverage": mean(covered), "size": mean(sizes), "by_class": rows}
    if per is None:
        return result | {"all": overall.summary(has_law=True)}
    p_values = [row["p"] for row in rows.values()] + [row["p_of_mean"] for row in rows.values()]
    return result | {
        "tests": len(p_values),
        "tests_with_p_below_0.05": sum(bool(p < 0.05) for p in p_values),
        "expected_by_chance": 0.05 * len(p_values),
        "least_p_times_tests": min(1.0, min(p_values) * len(p_values)),
    }


class Law:
    """Compares the covered counts of several splits with their beta-binomial laws."""

    def __init__(self) -> None:
        self.shares: list[float] = []
        self.expected: list[float] = []
        self.inside = 0
        self.mass: list[float] = []

    def add(self, share: Share, calibration: int) -> None:
        """Take in one split: how many test examples it covered, and how many calibration examples it had."""
        low, high, mass, expected = bounds(calibration, share.count)
        self.shares.append(share.share)
        self.expected.append(expected)
        self.inside += int(low <= share.covered <= high)
        self.mass.append(mass)

    def summary(self, has_law: bool) -> dict[str, Any]:
        """Return the mean coverage; and where a guarantee gives the law, how the splits agree with it.

        The counts of splits within the bounds has a binomial law (with the mean probability of the bounds, which differ
        little), and its two-sided p-value doubles the smaller tail. The mean is judged by its standard error.
        """
        row: dict[str, Any] = mean(self.shares)
        if not has_law:
            return row
        count, probability = len(self.shares), statistics.mean(self.mass)
        tails = binom.cdf(self.inside, count, probability), binom.sf(self.inside - 1, count, probability)
        z = (row["mean"] - statistics.mean(self.expected)) / max(row["error"], 1e-12)
        return row | {
            "expected": statistics.mean(self.expected),
            "splits_within_95_percent_bounds": self.inside,
            "expected_within": count * probability,
            "p": float(min(1.0, 2 * min(tails))),
            "p_of_mean": math.erfc(abs(z) / math.sqrt(2)),
        }


@lru_cache(maxsize=100_000)
def bounds(calibration: int, test: int) -> tuple[int, int, float, float]:
    """Return the 95 % bounds of the covered count, the probability that it lies within them, and its mean share.

    Hits are beta-binomial with k and n + 1 − k, where k is the rank of the threshold among n calibration scores.
    """
    rank = rank_of(calibration, LEVEL)
    law = betabinom(test, rank, calibration + 1 - rank)
    tail = np.cumsum(law.pmf(np.arange(test + 1)))
    low, high = int(np.searchsorted(tail, 0.025)), int(np.searchsorted(tail, 0.975))
    mass = tail[high] - (tail[low - 1] if low else 0.0)
    return low, high, float(mass), rank / (calibration + 1)


# ---------------------------------------------------------------- risk control on LIDC


def lidc_pool(work: Path, folder: Path, images: int, pool: int, epochs: int) -> tuple[Tensor, Tensor, list[str]]:
    """Train a small U-Net on some patients, and return log-probabilities, masks and patients of others."""
    path = work / f"lidc-{images}-{pool}-{epochs}.safetensors"
    source = lidc(folder)
    arrays = np.load(folder / "LIDC" / "lidc_128x128_4raters.npz")  # without objects, so nothing is unpickled
    patients = arrays["patient"].tolist()
    test = (line_up(patients, 0) % 1) < 1 / 4  # as `lidc` divides them, for the first fold
    names = [str(patient) for patient, chosen in zip(patients, test.tolist(), strict=True) if chosen]
    rows = torch.randperm(len(source.test), generator=torch.Generator().manual_seed(0))[:pool].sort().values
    if not path.exists():
        centre = slice(32, 96)  # nodules lie in the middle of a patch

        def cut(data: Any, chosen: Tensor) -> tuple[Tensor, Tensor]:
            pairs = [data[int(i)] for i in chosen]
            x, y = (torch.stack([pair[part] for pair in pairs]) for part in (0, 1))
            return x[..., centre, centre], y[..., centre, centre]

        torch.manual_seed(0)
        chosen = torch.randperm(len(source.train))[:images]
        model = unet(in_channels=1, classes=2, width=8, depth=2)
        batches = DataLoader(TensorDataset(*cut(source.train, chosen)), batch_size=32, shuffle=True)
        lb.fit(model, batches, likelihood=lb.Categorical(), epochs=epochs, seed=0)
        x, y = cut(source.test, rows)
        p = lb.predict(model, x, batch_size=64, samples=1).mean
        logs = p.double().clamp_min(1e-300).log()
        write_tensors(path, {"log_p": logs, "y": y.to(torch.int8)}, {"kind": "pool", "format": 1})
        print(f"trained {path.stem}: Dice {lb.metrics.dice(p, y).mean():.3f}", flush=True)
    found = read_tensors(path, "pool", 1)[1]
    return found["log_p"], found["y"].long(), [names[int(i)] for i in rows]


def risk(log_p: Tensor, y: Tensor, patients: list[str], splits: int, **settings: Any) -> dict[str, Any]:
    """Calibrate on half of the patients and test on the other half, again and again."""
    names = sorted(set(patients))
    means, thresholds, areas = [], [], []
    for first, second in halves(len(names), splits):
        sides = [{names[int(i)] for i in part} for part in (first, second)]
        rows = [torch.tensor([place for place, name in enumerate(patients) if name in side]) for side in sides]
        control = RiskControl(nn.Identity(), **settings)
        of = [[patients[int(i)] for i in part] for part in rows]
        control.calibrate([(log_p[part], y[part]) for part in rows[0].split(256)], patients=of[0])
        losses = torch.cat([control.losses(log_p[part], y[part]) for part in rows[1].split(256)])
        by_patient: dict[str, list[float]] = {}
        for name, loss in zip(of[1], losses.tolist(), strict=True):
            by_patient.setdefault(name, []).append(loss)
        means.append(statistics.mean(statistics.mean(of_one) for of_one in by_patient.values()))
        thresholds.append(control.threshold)
        areas.append(control.masks(log_p[rows[1]]).double().mean().item())
    above = sum(value > settings["level"] for value in means)
    return {
        "patients": len(names),
        "images": len(patients),
        "splits": splits,
        "risk": mean(means),
        "splits_above_the_level": above,
        "interval_of_that_share": clopper_pearson(above, splits),
        "threshold": mean(thresholds),
        "marked_share_of_pixels": mean(areas),
    }


# ---------------------------------------------------------------- the program


def main() -> None:
    """Run the parts that the command names, and write the results after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data-dir", type=Path, default=Path(os.environ.get("LEANBAYES_DATA", "data")))
    parser.add_argument("--work", type=Path, default=ROOT / "out" / "conformal_sizes", help="where predictions lie")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the results")
    parser.add_argument("--only", nargs="+", default=["digits", "breastmnist", "fashion-mnist", "lidc"])
    parser.add_argument("--splits", type=int, default=100)
    parser.add_argument("--risk-splits", type=int, default=50)
    parser.add_argument("--lidc", type=int, nargs=3, default=[400, 500, 4], metavar=("IMAGES", "POOL", "EPOCHS"))
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    about = {"level": LEVEL, "rates": RATES, "splits": options.splits, "risk_splits": options.risk_splits}
    about |= {"lidc": options.lidc}
    for name in options.only:
        results: dict[str, Any] = {}
        if name == "lidc":
            results = measure_lidc(options)
        else:
            log_p, y = Trainer(name, options.data_dir, options.work).pool("deterministic", RATES[name], 0).test
            for per in (None, "class"):
                for score in SCORES:
                    found = coverage(log_p, y, score, per, options.splits)
                    results[f"{name}, {score}, per {per}"] = found
                    short = f"coverage {found['coverage']['mean']:.4f}, size {found['size']['mean']:.3f}"
                    print(f"{name} {score} {per}: {short} {json.dumps(found.get('all', {}))}", flush=True)
        write(options.out / f"conformal_{name}.json", results, about)


def measure_lidc(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the risk of masks on LIDC over splits by patient."""
    log_p, y, patients = lidc_pool(options.work, options.data_dir, *options.lidc)
    ways: dict[str, dict[str, Any]] = {
        "missed pixels at most 10 % in expectation": {"level": 0.1},
        "missed pixels at most 10 % with confidence 0.9": {"level": 0.1, "confidence": 0.9},
        "missed lesions at most 10 % in expectation": {"risk": "missed_lesions", "level": 0.1},
    }
    results = {}
    for title, settings in ways.items():
        results[f"lidc, {title}"] = risk(log_p, y, patients, options.risk_splits, **settings)
        print(title, json.dumps(results[f"lidc, {title}"]), flush=True)
    return results


if __name__ == "__main__":
    main()
