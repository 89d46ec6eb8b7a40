"""Measure the promises of `leanbayes.conformal` over random splits, and the size of the sets of several methods.

Each method is trained once for each seed, and what it predicts for all examples that it has not been trained on is
stored. Then these examples are divided at random, again and again, into a part for the calibration and a part for the
test. The work is light: small networks on one core. A program that was stopped goes on where it was.

    python benchmarks/conformal.py --data-dir DIRECTORY --work WORK       # FashionMNIST, MedMNIST and LIDC in DIRECTORY

`--only digits breastmnist` restricts it to these parts; `lidc` is the part of risk control. `--sizes` measures instead
how large the sets of each method are at 90 %, over seeds, and adds its data sets to those in the file of results:

    python benchmarks/conformal.py --sizes --only breastmnist --seeds 5 --data-dir DIRECTORY --work WORK
    python benchmarks/conformal.py --sizes --only fashion-mnist cifar10 --seeds 5 --data-dir DIRECTORY --work WORK
"""

import argparse
import hashlib
import json
import math
import os
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import betabinom
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import leanbayes as lb
from harness import RESULTS, write
from leanbayes._files import read_tensors, write_tensors
from leanbayes.conformal import RiskControl, Sets, clopper_pearson, coverage_of
from leanbayes.lab.data import DATA, Task
from leanbayes.lab.data.rated import line_up
from leanbayes.lab.data.sets.digits import digits
from leanbayes.lab.data.sets.lidc import lidc
from leanbayes.lab.models import unet
from leanbayes.lab.recipes import Budget, Run, parse, prepare, settings
from leanbayes.lab.statistics import interval

LEVEL = 0.9
SCORES = ("lac", "aps", "raps")
METHODS = ("deterministic", "deterministic+temperature", "ensemble", "lean")
"""One network; the same with a temperature; five networks; and LeanBayes's own recipe."""

PLAIN: dict[tuple[str, int, int], dict[Any, Any]] = {}
"""The plain networks that were trained in this process, for each data set, seed and number of epochs."""


# ---------------------------------------------------------------- training


def task_named(name: str, folder: Path) -> Task:
    """Return a data set with the network for it. Its test set is the pool that is divided again and again."""
    if name == "digits":
        return digits()
    task = DATA[name](folder).task()
    if name in ("fashion-mnist", "cifar10"):
        small = {"train": 5000, "validation": 1000, "test": 6000}
        return replace(task, **{part: Subset(getattr(task, part), range(count)) for part, count in small.items()})
    return task


def stored(work: Path, name: str, method: str, seed: int, folder: Path, epochs: int) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and classes of the pool; train the method first if nobody has."""
    # Other settings of a recipe are another job. Remove the folder if the code of a recipe has changed.
    chosen = hashlib.sha256(json.dumps(settings(parse(method)), sort_keys=True).encode()).hexdigest()[:8]
    path = work / f"{name}-{method}-{seed}-{epochs}-{chosen}.safetensors"
    if not path.exists():
        task = task_named(name, folder)
        nets = PLAIN.setdefault((name, seed, epochs), {})  # methods of one seed share their plain networks
        trained = prepare(parse(method), task, Run(Budget(epochs=epochs), seed=seed, nets=nets))
        batches = DataLoader(task.test, batch_size=256)
        source = torch.Generator().manual_seed(seed)
        p = torch.cat([lb.predict(trained.predictor, x, generator=source).mean for x, _ in batches])
        y = torch.cat([y for _, y in batches])
        # In float64 the logarithm gives every probability back, so that sets are made from the same numbers.
        logs = p.double().clamp_min(1e-300).log()
        write_tensors(path, {"log_p": logs, "y": y}, {"kind": "pool", "format": 1})
        right = (p.argmax(1) == y).double().mean()
        print(f"trained {path.stem}: accuracy {right:.3f} in {trained.seconds:.0f} s", flush=True)
    found = read_tensors(path, "pool", 1)[1]
    return found["log_p"], found["y"]


# ---------------------------------------------------------------- splits


def halves(count: int, splits: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Divide examples at random into two halves, again and again."""
    for split in range(splits):
        order = torch.randperm(count, generator=torch.Generator().manual_seed(split))
        yield order[: count // 2], order[count // 2 :]


def coverage(log_p: Tensor, y: Tensor, score: str, per: Any, splits: int) -> dict[str, Any]:
    """Calibrate and test sets on each split."""
    covered, sizes, inside, by_class = [], [], 0, []
    number = log_p.shape[1]
    for calibration, test in halves(len(y), splits):
        sets = Sets(nn.Identity(), LEVEL, score, per).calibrate([(log_p[calibration], y[calibration])])
        found = coverage_of(sets, [(log_p[test], y[test])])
        covered.append(found.overall.share)
        sizes.append(found.size)
        by_class.append([found.by_class[c].share for c in range(number)])
        # The coverage of one calibration varies too: over both, hits are beta-binomial; see `bounds`.
        low, high = bounds(len(calibration), len(test))
        inside += int(bool(low <= found.overall.share <= high))
    each = torch.tensor(by_class, dtype=torch.float64)
    return {
        "splits": splits,
        "coverage": mean(covered),
        "splits_within_99_percent_bounds": inside,
        "coverage_by_class": each.mean(0).tolist(),
        "lowest_class": each.mean(0).min().item(),
        "error_by_class": (each.std(0) / math.sqrt(splits)).tolist(),
        "size": mean(sizes),
    }


def bounds(calibration: int, test: int) -> tuple[float, float]:
    """Return the 99 % bounds of the coverage on a test set: hits are beta-binomial with k and n + 1 − k."""
    rank = math.ceil((calibration + 1) * LEVEL - 1e-9)
    law = betabinom(test, rank, calibration + 1 - rank)
    return law.ppf(0.005) / test, law.ppf(0.995) / test


def mean(values: list[float]) -> dict[str, float]:
    """Return the mean over splits, the standard deviation, and the error of the mean."""
    deviation = statistics.stdev(values)
    return {"mean": statistics.mean(values), "deviation": deviation, "error": deviation / math.sqrt(len(values))}


# ---------------------------------------------------------------- sizes of methods at equal coverage


def sizes(pools: dict[str, list[tuple[Tensor, Tensor]]], score: str, splits: int) -> dict[str, Any]:
    """Return the mean size of each method's sets with intervals, and how much smaller those of "lean" are.

    Args:
        pools: for each method, log-probabilities and classes of the pool, one pair for each seed.
        score: what sets are made by.
        splits: how often a pool is divided. All methods and seeds are divided alike.
    """
    results: dict[str, Any] = {}
    for method, pairs in pools.items():
        per_seed = [coverage(log_p, y, score, None, splits) for log_p, y in pairs]
        sizes_of = [found["size"]["mean"] for found in per_seed]
        results[method] = {
            "coverage": statistics.mean(found["coverage"]["mean"] for found in per_seed),
            "size_by_seed": sizes_of,
            "size": spread(sizes_of),
            "accuracy": statistics.mean((log_p.argmax(1) == y).double().mean().item() for log_p, y in pairs),
        }
    if "lean" in results:
        ours = results["lean"]["size_by_seed"]
        for method, found in results.items():
            if method != "lean":
                pairs_of = zip(found["size_by_seed"], ours, strict=True)
                found["larger_than_lean"] = spread([theirs - own for theirs, own in pairs_of])
    return results


def spread(values: list[float]) -> dict[str, float | None]:
    """Return the mean over seeds and Student's 95 % interval, which one seed does not have."""
    span = interval(values)
    return {"mean": span.mean, "low": span.low, "high": span.high}


def measure_sizes(options: argparse.Namespace, folder: Path, epochs: dict[str, int]) -> None:
    """Measure each data set, and write the results after each, beside those of other data sets."""
    results: dict[str, Any] = {}
    if options.out.exists():
        results = json.loads(options.out.read_text())["results"]
    about = {"level": LEVEL, "epochs": epochs, "splits": options.splits, "seeds": options.seeds}
    for name in options.only:
        seeds = range(options.seeds)
        pools = {
            method: [stored(options.work, name, method, seed, folder, epochs[name]) for seed in seeds]
            for method in options.methods
        }
        for score in ("lac", "aps"):
            results[f"{name}, {score}"] = sizes(pools, score, options.splits)
            for method, found in results[f"{name}, {score}"].items():
                print(name, score, method, json.dumps(found["size"]), f"coverage {found['coverage']:.4f}", flush=True)
        write(options.out, results, about)


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
    """Run the parts that the command names, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--work", type=Path, default=Path("conformal-work"), help="where what is trained is stored")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--sizes", action="store_true", help="measure the sizes of methods at equal coverage")
    parser.add_argument("--only", nargs="+", default=["digits", "breastmnist", "fashion-mnist", "lidc"])
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--splits", type=int, default=100)
    parser.add_argument("--risk-splits", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--lidc", type=int, nargs=3, default=[2000, 1500, 4], metavar=("IMAGES", "POOL", "EPOCHS"))
    options = parser.parse_args()
    folder = options.data_dir or Path(os.environ.get("LEANBAYES_DATA", "data"))
    options.work.mkdir(parents=True, exist_ok=True)
    options.out = options.out or RESULTS / ("conformal_sizes.json" if options.sizes else "conformal.json")
    epochs = {"digits": 40, "breastmnist": 20, "fashion-mnist": 8, "cifar10": 12}
    if options.sizes:
        options.only = [name for name in options.only if name != "lidc"]
        measure_sizes(options, folder, epochs)
        return
    about = {"level": LEVEL, "epochs": epochs, "splits": options.splits, "risk_splits": options.risk_splits}
    about |= {"seeds": options.seeds, "methods": options.methods, "only": options.only, "lidc": options.lidc}
    results: dict[str, Any] = {}
    for name in options.only:
        if name == "lidc":
            log_p, y, patients = lidc_pool(options.work, folder, *options.lidc)
            ways: dict[str, dict[str, Any]] = {
                "missed pixels at most 10 % in expectation": {"level": 0.1},
                "missed pixels at most 10 % with confidence 0.9": {"level": 0.1, "confidence": 0.9},
                "missed lesions at most 10 % in expectation": {"risk": "missed_lesions", "level": 0.1},
            }
            for title, settings in ways.items():
                results[f"lidc, {title}"] = risk(log_p, y, patients, options.risk_splits, **settings)
                print(title, json.dumps(results[f"lidc, {title}"]), flush=True)
                write(options.out, results, about)  # after each part, so that a program that is stopped loses little
            continue
        for method in options.methods:
            for seed in range(options.seeds):
                log_p, y = stored(options.work, name, method, seed, folder, epochs[name])
                for per in (None, "class") if method == "deterministic" else (None,):
                    for score in SCORES:
                        found = coverage(log_p, y, score, per, options.splits)
                        results[f"{name}, {method}, seed {seed}, {score}, per {per}"] = found
                        short = f"coverage {found['coverage']['mean']:.4f}, size {found['size']['mean']:.3f}"
                        print(f"{name} {method} {score} {per}: {short}", flush=True)
            write(options.out, results, about)


if __name__ == "__main__":
    main()
