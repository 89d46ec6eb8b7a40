"""VDP++ beside a deterministic network and Bayes-by-backprop on MNIST: what 002 studies, and which of its claims hold.

LeNet-5 (002, section 3), several seeds at a CPU-size budget. All methods have the same network, images, epochs and
seeds, and the Bayesian ones are trained from scratch, every weight random. The weight of their KL is chosen on
validation images by one rule, with a seed that is not judged. A small ViT trained as VDP++ comes with it.

    python benchmarks/vdp_mnist.py --data-dir DIRECTORY        # with MNIST/raw/*.gz in it

What one job finds is kept in ``--cache``: a run that was stopped goes on where it was.
"""

import argparse
import math
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

import leanbayes as lb
from harness import RESULTS, ROOT, kept, write
from leanbayes.data import Task
from leanbayes.data.digits import mnist
from leanbayes.evaluate import Explainer, accuracy_on, accuracy_under_noise, noise_curve, prune, pruning_curve
from leanbayes.evaluate.noise import SNRS
from leanbayes.models import vit
from leanbayes.recipes import Budget, Run, Trained, parse, prepare, settings
from vdp_claims import FRACTIONS, summary, tests, verdicts

METHODS = ("deterministic", "vi", "vdp")
SPEC = "{}:pretrain=0,prior={},init_scale=0.01,kl_start={kl},kl_end={kl}"
KL_WEIGHTS = (0.003, 0.03, 0.1, 0.3, 1.0)
VIT_KL_WEIGHTS = (0.01, 0.1)
SEARCH_SEED = 1000  # none of those that are judged


@dataclass(frozen=True)
class Setting:
    """All that a result depends on."""

    images: int
    epochs: int
    validation: int
    test: int
    noisy: int
    explained: int
    covariance_images: int
    draws: int
    vit_images: int
    batch_size: int = 128
    lr: float = 2e-3
    vit_width: int = 48
    vit_depth: int = 3


@dataclass(frozen=True)
class Job:
    """One network to train and what to measure of it: "search" on validation images, the others on test images."""

    kind: str
    method: str
    seed: int
    kl_weight: float | None = None
    prior: str = "fitted"

    @property
    def spec(self) -> str:
        """The recipe."""
        return self.method if self.kl_weight is None else SPEC.format(self.method, self.prior, kl=self.kl_weight)


@cache
def task_of(data_dir: Path, setting: Setting, network: str) -> Task:
    """MNIST with so many images, as tensors, the same for every seed."""
    source = mnist(data_dir)
    task = source.task("lenet5")
    order = torch.Generator().manual_seed(0)

    def some(data: Any, count: int) -> TensorDataset:
        places = torch.randperm(len(data), generator=order)[:count]
        return TensorDataset(source.preparation.standardise(data.inputs[places]), data.targets[places])

    images = setting.vit_images if network == "vit" else setting.images
    sizes = {"train": images, "validation": setting.validation, "test": setting.test}
    sets = {name: some(getattr(source, name), count) for name, count in sizes.items()}
    if network == "vit":
        make = partial(vit, 1, 10, (28, 28), 7, setting.vit_width, setting.vit_depth, 4)
        return replace(task, model=make, **sets)
    return replace(task, **sets)


def trained(job: Job, setting: Setting, task: Task) -> Trained:
    """The job's network."""
    budget = Budget(epochs=setting.epochs, batch_size=setting.batch_size, lr=setting.lr, schedule="cosine", clip=1.0)
    return prepare(parse(job.spec), task, Run(budget, job.seed))


def quality(net: Trained, x: Tensor, y: Tensor, setting: Setting) -> dict[str, float]:
    """Accuracy, nll and calibration."""
    source = torch.Generator().manual_seed(0)
    batches = [(x[i : i + 500], y[i : i + 500]) for i in range(0, len(x), 500)]
    found = lb.evaluate(net.predictor, batches, likelihood=net.likelihood, samples=setting.draws, generator=source)
    return {name: found.metrics[name] for name in ("accuracy", "nll", "ece")}


def searched(net: Trained, task: Task, setting: Setting) -> dict[str, Any]:
    """What a KL weight comes to on validation images: the nll to choose by, and 002's two properties to look at."""
    x, y = task.validation[:]
    source = torch.Generator().manual_seed(0)
    said = lb.predict(net.predictor, x, samples=setting.draws, batch_size=500, generator=source)
    nll = -said.mean.double().gather(1, y[:, None]).clamp_min(1e-12).log()
    right = (said.mean.argmax(1) == y).double()
    x, y = x[: setting.noisy], y[: setting.noisy]
    pruned = prune(net.predictor, 0.9).model
    return {
        "nll": nll.mean().item(),
        "nll_standard_error": nll.std().item() / math.sqrt(len(nll)),
        "accuracy": right.mean().item(),
        "accuracy_at_-6dB": accuracy_under_noise(net.predictor, x, y, samples=setting.draws, batch_size=500),
        "accuracy_90%_pruned": accuracy_on(x, y, samples=setting.draws, batch_size=500)(pruned),
        **scales(net),
    }


def judged(net: Trained, task: Task, setting: Setting, pixel: float) -> dict[str, Any]:
    """What 002 measures, of one network, on test images. ``pixel`` is the input's unit in those of [0, 1]."""
    x, y = task.test[:]
    found: dict[str, Any] = quality(net, x, y, setting)
    x, y = x[: setting.noisy], y[: setting.noisy]
    curve = noise_curve(net.predictor, x, y, samples=setting.draws, batch_size=500)
    found |= {"accuracy_by_snr": curve.score.tolist(), "variance_by_snr": curve.variance.tolist()}
    measure = accuracy_on(x, y, samples=setting.draws, batch_size=500)
    found["accuracy_by_pruned"] = pruning_curve(net.predictor, measure, FRACTIONS).values.tolist()
    x, y = x[: setting.explained], y[: setting.explained]
    explainer = Explainer(net.predictor, samples=setting.draws, batch_size=100)
    found |= {
        "sensitivity_max": explainer.sensitivity_max(x, y, radius=0.1 / pixel).mean().item(),
        "infidelity": explainer.infidelity(x, y, radius=0.5 / pixel, signed=False).mean().item(),
        "infidelity_signed": explainer.infidelity(x, y, radius=0.5 / pixel).mean().item(),
    }
    return found | scales(net)


def correlated(net: Trained, task: Task, setting: Setting, seed: int) -> dict[str, Any]:
    """The variance curve of one network on a few images of its own: full covariance, its diagonal, weight samples."""
    start = seed * setting.covariance_images % len(task.test)
    x, y = (part[start : start + setting.covariance_images] for part in task.test[:])
    ways = {"covariance": (64, 4), "moments": (64, 4), "sample": (256, len(x))}
    curves = {
        way: noise_curve(net.predictor, x, y, samples=points, propagate=way, batch_size=size)
        for way, (points, size) in ways.items()
    }
    return {way: {"variance": c.variance.tolist(), "accuracy": c.score.tolist()} for way, c in curves.items()}


def scales(net: Trained) -> dict[str, float]:
    """How large the trained scales are."""
    if not isinstance(net.predictor, lb.Bayesian):
        return {}
    spreads = [weight.spread.detach().flatten() for weight in net.predictor.weights().values()]
    return {"median_scale": torch.cat(spreads).median().item()}


def done(job: Job, setting: Setting, data_dir: Path, store: Path) -> dict[str, Any]:
    """Train, measure and keep; what was kept before is read."""

    def make() -> dict[str, Any]:
        begin, task = time.perf_counter(), task_of(data_dir, setting, "vit" if "vit" in job.kind else "lenet5")
        net = trained(job, setting, task)
        if "search" in job.kind:
            found = searched(net, task, setting)
        else:
            found = judged(net, task, setting, mnist(data_dir).preparation.std[0])
            if job.kind == "lenet5" and job.method == "vdp":
                found["propagated"] = correlated(net, task, setting, job.seed)
        print(f"{job.kind} {job.spec} seed {job.seed}: {time.perf_counter() - begin:.0f} s", flush=True)
        return {"kl_weight": job.kl_weight, **found, "training_seconds": net.seconds}

    key = [asdict(job), settings(parse(job.spec)), asdict(setting)]
    return kept(store, f"{job.kind}_{job.method}_{job.seed}", key, make)


def chosen(tried: list[dict[str, Any]]) -> float:
    """The largest KL weight whose validation nll is within one standard error of the lowest.

    Of weights that do equally well it is the one that regularises most: what 002 wants of its search is performance
    "while retaining their inherent properties", and those come with the KL.
    """
    best = min(tried, key=lambda row: row["nll"])
    limit = best["nll"] + best["nll_standard_error"]
    return max(row["kl_weight"] for row in tried if row["nll"] <= limit)


def all_done(jobs: list[Job], options: argparse.Namespace, setting: Setting) -> Iterator[dict[str, Any]]:
    """Results in the order of the jobs; each worker has one thread, which for small networks is the fastest."""
    one = partial(done, setting=setting, data_dir=options.data_dir, store=options.cache)
    if options.workers == 1:
        yield from map(one, jobs)
        return
    pool = ProcessPoolExecutor(options.workers, get_context("spawn"), torch.set_num_threads, (1,))
    with pool:
        yield from pool.map(one, jobs)


def main() -> None:
    """Search, train, measure, test, judge, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("LEANBAYES_DATA", "data"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--vit-seeds", type=int, default=1)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--vit-images", type=int, default=8_000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--validation", type=int, default=4_000)
    parser.add_argument("--test", type=int, default=10_000)
    parser.add_argument("--noisy", type=int, default=2_000, help="test images for noise and pruning")
    parser.add_argument("--explained", type=int, default=300, help="test images for explanations")
    parser.add_argument("--covariance-images", type=int, default=10, help="of each seed, for full covariance")
    parser.add_argument("--draws", type=int, default=16)
    parser.add_argument("--kl-weights", type=float, nargs="+", default=KL_WEIGHTS)
    parser.add_argument("--vit-kl-weights", type=float, nargs="+", default=VIT_KL_WEIGHTS)
    parser.add_argument("--prior", default="fitted", help="of the Bayesian methods; 002 has normal (eq. 12)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cache", type=Path, default=ROOT / "out" / "vdp_mnist")
    parser.add_argument("--out", type=Path, default=RESULTS / "vdp_mnist.json")
    options = parser.parse_args()
    setting = Setting(**{name: getattr(options, name) for name in list(Setting.__dataclass_fields__)[:9]})
    torch.set_num_threads(1)

    job_of = partial(Job, prior=options.prior)
    grid = [job_of("search", method, SEARCH_SEED, kl) for method in ("vdp", "vi") for kl in options.kl_weights]
    grid += [job_of("vit_search", "vdp", SEARCH_SEED, kl) for kl in options.vit_kl_weights]
    tried: dict[str, list[dict[str, Any]]] = {}
    for job, found in zip(grid, all_done(grid, options, setting), strict=True):
        tried.setdefault("vit" if job.kind == "vit_search" else job.method, []).append(found)
    weights = {name: chosen(rows) for name, rows in tried.items()}
    print("KL weights:", weights, flush=True)

    seeds, vit_seeds = range(options.seeds), range(options.vit_seeds)
    jobs = [job_of("vit", "vdp", seed, weights["vit"]) for seed in vit_seeds]  # the longest first
    jobs += [job_of("lenet5", method, seed, weights.get(method)) for method in reversed(METHODS) for seed in seeds]
    jobs += [job_of("vit", "deterministic", seed) for seed in vit_seeds]
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for job, found in zip(jobs, all_done(jobs, options, setting), strict=True):
        runs.setdefault(job.kind, {}).setdefault(job.method, []).append(found)
    lenets = {method: runs["lenet5"][method] for method in METHODS}
    tested = tests(lenets, runs["vit"])
    judgements = verdicts(lenets, runs["vit"], tested, tried["vdp"])
    for verdict in judgements:
        print(f"{verdict['verdict']}: {verdict['claim']}\n    {verdict['why']}")
    results = {
        "kl_weights": {"rule": " ".join((chosen.__doc__ or "").split()), "seed": SEARCH_SEED, "chosen": weights},
        "tried": tried,
        "summary": summary(runs),
        "runs": runs,
        "tests": tested,
        "verdicts": judgements,
    }
    about = {"snr_db": SNRS, "fractions_pruned": FRACTIONS, "recipe": SPEC, "prior": options.prior}
    about |= {name: getattr(options, name) for name in ("seeds", "vit_seeds", "workers")}
    write(options.out, results, asdict(setting) | about)


if __name__ == "__main__":
    main()
