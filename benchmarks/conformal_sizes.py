"""How large are the sets of several methods at 90 % coverage? Writes docs/results/conformal_sizes.json.

    python benchmarks/conformal_sizes.py --data-dir DIRECTORY [--only fashion-mnist cifar10 breastmnist] [--seeds 5]

The methods are one plain network, the same with a temperature, five plain networks, the same with a temperature, and
one `lean` network. For each data set all networks have the same training images, the same number of epochs and the same
batches. Plain networks keep the epoch with the least validation loss. A training of its own (seed 1000) tries the same
five learning rates for plain networks and for lean ones, and those with the least validation NLL are taken; the plain
ones are scored with a temperature. No choice sees a test image.

The test images are divided again and again at random into a half for the calibration and a half for the test, alike for
all methods. Seeds are paired: the plain network of seed s is the first of the five networks of seed s, and starts from
the same weights as the lean one.

Only predictions are stored, in the folder ``--work``. A program that was stopped goes on where it was. After a change
of the recipe, this command trains lean alone again, and compares it with the stored predictions of the others:

    python benchmarks/conformal_sizes.py --data-dir DIRECTORY --again lean
"""

import argparse
import json
import math
import os
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from harness import RESULTS, ROOT, write
from leanbayes._files import read_tensors, write_tensors
from leanbayes.baselines import Temperature
from leanbayes.conformal import Sets, coverage_of
from leanbayes.conformal.class_scores import as_class_score
from leanbayes.conformal.quantiles import rank_of
from leanbayes.lab.data import Task, load_data
from leanbayes.lab.data.sets.digits import digits
from leanbayes.lab.recipes import Budget, Run, parse, prepare
from leanbayes.lab.statistics import interval
from leanbayes_papers.training import small_task

LEVEL = 0.9
TUNING_SEED = 1000
MEMBERS = 5
RATES = (1e-3, 2e-3, 4e-3, 8e-3, 16e-3)
"""The learning rates that plain networks and lean ones choose from."""


@dataclass(frozen=True)
class Setting:
    """What is trained on a data set: training, validation and test images (None for all), a network and its epochs."""

    counts: tuple[int | None, int | None, int | None]
    model: str | None
    epochs: int
    batch_size: int


SETTINGS = {
    "digits": Setting((None, None, None), None, 40, 64),
    "breastmnist": Setting((None, None, None), "lenet5", 30, 50),
    "fashion-mnist": Setting((5_000, 1_000, None), "lenet5", 15, 100),
    "cifar10": Setting((5_000, 1_000, None), "small_resnet", 10, 100),
}


@dataclass(frozen=True)
class Pool:
    """What a network predicts: log-probabilities and true classes of the validation and of the test images."""

    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


# ---------------------------------------------------------------- training


@dataclass
class Trainer:
    """Trains the networks of one data set, and keeps what they predict in files.

    Args:
        name: the data set.
        folder: where data sets are looked for.
        work: where predictions are kept.
    """

    name: str
    folder: Path
    work: Path

    def __post_init__(self) -> None:
        self._task: Task | None = None

    def pool(self, recipe: str, lr: float, seed: int) -> Pool:
        """Return what a network predicts; train it first if nobody has."""
        setting = SETTINGS[self.name]
        about = f"{self.name}-{setting.counts[0]}-{setting.model}-{setting.epochs}-{recipe}-{lr:g}-{seed}"
        path = self.work / (about.replace(":", "_").replace("=", "_") + ".safetensors")
        if not path.exists():
            self._train(path, recipe, lr, seed)
        stored = read_tensors(path, "pool", 1)[1]
        return Pool((stored["validation"], stored["validation_y"]), (stored["test"], stored["test_y"]))

    def _train(self, path: Path, recipe: str, lr: float, seed: int) -> None:
        setting = SETTINGS[self.name]
        if self._task is None:
            is_known = self.name == "digits"  # which come with scikit-learn, in no folder
            self._task = (
                digits() if is_known else small_task(load_data(self.name, self.folder), setting.counts, setting.model)
            )
        budget = Budget(setting.epochs, setting.batch_size, lr=lr, schedule="cosine")
        trained = prepare(parse(recipe), self._task, Run(budget, seed=seed))
        tensors: dict[str, Tensor] = {}
        for part in ("validation", "test"):
            x, y = getattr(self._task, part).tensors
            source = torch.Generator().manual_seed(seed)
            p = lb.predict(trained.predictor, x, batch_size=250, generator=source).mean.double()
            # In float64 the logarithm gives every probability back, so that sets are made from the same numbers.
            tensors |= {part: p.clamp_min(1e-300).log(), f"{part}_y": y}
        write_tensors(path, tensors, {"kind": "pool", "format": 1})
        right = (tensors["validation"].argmax(1) == tensors["validation_y"]).double().mean()
        print(f"trained {path.stem}: {right:.3f} of the validation images right, {trained.seconds:.0f} s", flush=True)


def nll(log_p: Tensor, y: Tensor) -> float:
    """Return the mean negative log-likelihood of the true classes."""
    return -log_p.gather(1, y[:, None]).mean().item()


def with_temperature(pool: Pool) -> Pool:
    """Divide the logarithms of the probabilities by the temperature with the least validation NLL."""
    fitted = Temperature.fit(nn.Identity(), [pool.validation], lb.Categorical(), samples=1)

    def scaled(part: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return (part[0] / fitted.temperature).log_softmax(1), part[1]

    return Pool(scaled(pool.validation), scaled(pool.test))


def averaged(pools: list[Pool]) -> Pool:
    """Average the probabilities of several networks."""

    def both(part: str) -> tuple[Tensor, Tensor]:
        logs = torch.stack([getattr(pool, part)[0] for pool in pools])
        return logs.exp().mean(0).log(), getattr(pools[0], part)[1]

    return Pool(both("validation"), both("test"))


def chosen(trainer: Trainer, has_lean: bool) -> dict[str, Any]:
    """Choose the learning rates by the validation NLL of a seed that is used for nothing else."""
    plain = {lr: nll(*with_temperature(trainer.pool("deterministic", lr, TUNING_SEED)).validation) for lr in RATES}
    lr = min(plain, key=lambda rate: plain[rate])
    choice: dict[str, Any] = {"lr": lr, "validation_nll": {"plain": plain}}
    if has_lean:
        recipes = [f"lean:lr={rate:g}" for rate in RATES]
        lean = {recipe: nll(*trainer.pool(recipe, lr, TUNING_SEED).validation) for recipe in recipes}
        choice["lean"] = min(lean, key=lambda recipe: lean[recipe])
        choice["validation_nll"]["lean"] = lean
    return choice


def pools_of(trainer: Trainer, choice: dict[str, Any], seeds: int) -> dict[str, list[Pool]]:
    """Return what each method predicts, for each seed."""
    methods: dict[str, list[Pool]] = {name: [] for name in ("plain", "plain+temperature", "five", "five+temperature")}
    for seed in range(seeds):
        plain = [trainer.pool("deterministic", choice["lr"], MEMBERS * seed + i) for i in range(MEMBERS)]
        five = averaged(plain)
        for name, pool in (("plain", plain[0]), ("five", five)):
            methods[name].append(pool)
            methods[f"{name}+temperature"].append(with_temperature(pool))
    if "lean" in choice:
        methods["lean"] = [trainer.pool(choice["lean"], choice["lr"], MEMBERS * seed) for seed in range(seeds)]
    return methods


# ---------------------------------------------------------------- splits


def halves(count: int, splits: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Divide examples at random into two halves, again and again."""
    for split in range(splits):
        order = torch.randperm(count, generator=torch.Generator().manual_seed(split))
        yield order[: count // 2], order[count // 2 :]


def mean(values: list[float]) -> dict[str, float]:
    """Return the mean over splits, the standard deviation, and the error of the mean."""
    deviation = statistics.stdev(values)
    return {"mean": statistics.mean(values), "deviation": deviation, "error": deviation / math.sqrt(len(values))}


# ---------------------------------------------------------------- sizes


def size_and_coverage(pool: Pool, score: str, splits: int) -> tuple[float, float]:
    """Return the mean size and the mean coverage of sets over random halves of the test images."""
    log_p, y = pool.test
    sizes, shares = [], []
    for calibration, test in halves(len(y), splits):
        sets = Sets(nn.Identity(), LEVEL, score).calibrate([(log_p[calibration], y[calibration])])
        measured = coverage_of(sets, [(log_p[test], y[test])])
        sizes.append(measured.size)
        shares.append(measured.overall.share)
    return mean(sizes)["mean"], mean(shares)["mean"]


def resampled_sizes(pools: list[Pool], score: str, resamples: int) -> Tensor:
    """Return the mean size over seeds on resampled test images, (resamples,), with the threshold of the resample.

    The interval over seeds says how sizes vary from training to training. This one says how they vary from one test
    set to another, which for 156 images is more.
    """
    rows = []
    for pool in pools:
        log_p, y = pool.test
        noise = torch.rand(len(y), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        scores = as_class_score(score).scores(log_p.exp(), noise)
        true = scores.gather(1, y[:, None])[:, 0]
        rows.append((scores, true))
    source = torch.Generator().manual_seed(1)
    result = []
    for _ in range(resamples):
        count = len(rows[0][1])
        drawn = torch.randint(count, (count,), generator=source)
        each = []
        for scores, true in rows:
            threshold = true[drawn].kthvalue(rank_of(count, LEVEL)).values
            each.append((scores <= threshold).sum(1)[drawn].double().mean())
        result.append(torch.stack(each).mean())
    return torch.stack(result)


def measured(methods: dict[str, list[Pool]], score: str, splits: int, resamples: int) -> dict[str, Any]:
    """Return size, coverage, accuracy and NLL of each method, and how much larger than those of lean its sets are."""
    rows: dict[str, Any] = {}
    resampled = {method: resampled_sizes(pools, score, resamples) for method, pools in methods.items()}
    for method, pools in methods.items():
        pairs = [size_and_coverage(pool, score, splits) for pool in pools]
        sizes = [size for size, _ in pairs]
        rows[method] = {
            "size": spread(sizes),
            "size_by_seed": sizes,
            "coverage": statistics.mean(share for _, share in pairs),
            "accuracy": statistics.mean(right(pool) for pool in pools),
            "nll": statistics.mean(nll(*pool.test) for pool in pools),
        }
    for method, row in rows.items() if "lean" in rows else ():
        if method != "lean":
            pairs_of = zip(row["size_by_seed"], rows["lean"]["size_by_seed"], strict=True)
            row["larger_than_lean"] = spread([theirs - own for theirs, own in pairs_of])
            low, high = (resampled[method] - resampled["lean"]).quantile(torch.tensor([0.025, 0.975]).double()).tolist()
            row["larger_than_lean"] |= {"low_over_test_images": low, "high_over_test_images": high}
    return rows


def right(pool: Pool) -> float:
    """Return the accuracy on the test images."""
    return (pool.test[0].argmax(1) == pool.test[1]).double().mean().item()


def spread(values: list[float]) -> dict[str, float | None]:
    """Return the mean over seeds and Student's 95 % interval, which one seed does not have."""
    span = interval(values)
    return {"mean": span.mean, "low": span.low, "high": span.high}


# ---------------------------------------------------------------- the program


def main() -> None:
    """Train what is missing, measure each data set, and write the record after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data-dir", type=Path, default=Path(os.environ.get("LEANBAYES_DATA", "data")))
    parser.add_argument("--work", type=Path, default=ROOT / "out" / "conformal_sizes", help="where predictions lie")
    parser.add_argument("--out", type=Path, default=RESULTS / "conformal_sizes.json")
    parser.add_argument(
        "--only", nargs="+", default=["breastmnist", "fashion-mnist", "cifar10"], choices=list(SETTINGS)
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--splits", type=int, default=100)
    parser.add_argument("--resamples", type=int, default=500)
    parser.add_argument("--without-lean", action="store_true", help="train and measure all methods but lean")
    parser.add_argument("--again", choices=["lean", "deterministic"], help="forget what this recipe predicted")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    results = json.loads(options.out.read_text())["results"] if options.out.exists() else {}
    for name in options.only:
        if options.again is not None:
            for path in options.work.glob(f"{name}-*-{options.again}*"):
                path.unlink()
    for name in options.only:
        trainer = Trainer(name, options.data_dir, options.work)
        choice = chosen(trainer, not options.without_lean)
        methods = pools_of(trainer, choice, options.seeds)
        setting = {**vars(SETTINGS[name]), **choice, "seeds": options.seeds, "splits": options.splits}
        results[name] = {"settings": setting}
        for score in ("lac", "aps"):
            results[name][score] = measured(methods, score, options.splits, options.resamples)
            for method, row in results[name][score].items():
                print(f"{name} {score} {method:18} size {row['size']} coverage {row['coverage']:.4f}", flush=True)
        about = {"level": LEVEL, "rates": RATES, "members": MEMBERS, "tuning_seed": TUNING_SEED}
        write(options.out, results, about | {"resamples": options.resamples})


if __name__ == "__main__":
    main()
