"""004's questions on CIFAR-10 at a CPU-size budget: accuracy, NLL, ECE and time of sparse against dense training.

The small ResNet of 001 on some of CIFAR-10's images, several seeds; the same images, epochs and learning rate for every
method, and the best epoch chosen on validation images. Then the robustness to the initial scale (004, figure 2, right),
the removal criteria (figure 2) and how far the weights that they remove overlap (appendix D.2).

    python benchmarks/ssvi_cifar.py --data-dir DIRECTORY          # with cifar-10-batches-bin in it

What one job finds is kept in ``--cache``: a run that was stopped goes on where it was.
"""

import argparse
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import leanbayes as lb
from harness import RESULTS, ROOT, kept, write
from leanbayes.data import Task, load_data
from leanbayes.evaluate.cost import count_parameters
from leanbayes.evaluate.statistics import interval, paired_t
from leanbayes.models import small_resnet
from leanbayes.recipes import Budget, Run, Trained, parse, prepare, settings
from leanbayes.subspace import REMOVAL, overlap, removal_scores, scatters

DENSE = "vi:pretrain=0,propagate=local,kl_start=0"
METHODS = {
    "deterministic": "deterministic",
    "dense vi": DENSE,
    "ssvi 90 %": "ssvi:density=0.1",
    "ssvi 95 %": "ssvi:density=0.05",
    "rigl 90 %": "rigl:density=0.1",
    "rigl 95 %": "rigl:density=0.05",
    "variational dropout": "variational_dropout:pretrain=0,kl_end=0.2",
}
SCALES = (0.001, 0.003, 0.01)  # the last is every recipe's own
CRITERIA = [name for name in REMOVAL if name != "snr_magnitude"]  # that is in "ssvi 90 %"


@dataclass(frozen=True)
class Setting:
    """All that a result depends on, apart from recipe and seed."""

    images: int
    validation: int
    test: int
    epochs: int
    draws: int = 5
    batch_size: int = 64
    lr: float = 2e-3


@dataclass(frozen=True)
class Job:
    """One training."""

    name: str
    spec: str
    seed: int


@cache
def task_of(folder: Path, setting: Setting) -> Task:
    """CIFAR-10 with so many images, the same for every seed."""
    source = load_data("cifar10", folder)
    order = torch.Generator().manual_seed(0)

    def some(data: Any, count: int) -> TensorDataset:
        places = torch.randperm(len(data), generator=order)[:count]
        return TensorDataset(source.preparation.standardise(data.inputs[places]), data.targets[places])

    sizes = {"train": setting.images, "validation": setting.validation, "test": setting.test}
    sets = {name: some(getattr(source, name), count) for name, count in sizes.items()}
    return replace(source.task(), model=partial(small_resnet, 3, 10), **sets)


def judged(net: Trained, task: Task, setting: Setting) -> dict[str, Any]:
    """Quality on test images, and what the network is."""
    x, y = task.test[:]
    batches = [(x[i : i + 500], y[i : i + 500]) for i in range(0, len(x), 500)]
    noise = torch.Generator().manual_seed(0)
    found = lb.evaluate(net.predictor, batches, likelihood=net.likelihood, samples=setting.draws, generator=noise)
    metrics = {name: found.metrics[name] for name in ("accuracy", "nll", "ece")}
    size = count_parameters(net.predictor)
    return metrics | {"training_seconds": net.seconds, "density": density(net.predictor), "bytes": float(size.bytes)}


def density(model: nn.Module) -> float:
    """Of the weights of linear maps and convolutions, the share that is stored."""
    inner: Any = model.model if isinstance(model, lb.Bayesian) else model
    sparse = scatters(inner)
    weights = [p for name, p in inner.named_parameters() if p.dim() > 1 or name in sparse]
    sizes = [p.numel() for p in weights if p.dim() > 1] + [scatter.size for scatter in sparse.values()]
    return sum(p.numel() for p in weights) / sum(sizes)


def overlaps(model: nn.Module) -> dict[str, float]:
    """IoU of the fifth of each layer's weights that two criteria would remove, the mean over layers."""
    assert isinstance(model, lb.Bayesian)
    weights = [weight for name, weight in model.weights().items() if name in scatters(model.model)]
    found: dict[str, float] = {}
    for one, two in combinations(REMOVAL, 2):
        each = []
        for weight in weights:
            scores = [removal_scores(name, weight.mean.detach(), weight.spread.detach()) for name in (one, two)]
            each.append(overlap(*scores, count=weight.count // 5))
        found[f"{one} and {two}"] = sum(each) / len(each)
    return found


def done(job: Job, setting: Setting, folder: Path, store: Path) -> dict[str, Any]:
    """Train and judge; what was kept before is read."""

    def make() -> dict[str, Any]:
        task = task_of(folder, setting)
        budget = Budget(
            epochs=setting.epochs, batch_size=setting.batch_size, lr=setting.lr, schedule="cosine", clip=5.0
        )
        begin = time.process_time()
        net = prepare(parse(job.spec), task, Run(budget, job.seed))
        seconds = time.process_time() - begin  # of one core: other jobs run beside this one
        found = judged(net, task, setting) | {"training_cpu_seconds": seconds}
        if job.name == "ssvi 90 %":
            found["overlaps"] = overlaps(net.predictor)
        print(job.name, job.seed, {k: round(v, 4) for k, v in found.items() if isinstance(v, float)}, flush=True)
        return found

    return kept(store, f"{job.name} {job.seed}", [asdict(job), settings(parse(job.spec)), asdict(setting)], make)


def all_done(jobs: list[Job], options: argparse.Namespace, setting: Setting) -> Iterator[dict[str, Any]]:
    """Results in the order of the jobs, one thread each."""
    one = partial(done, setting=setting, folder=options.data_dir, store=options.cache)
    pool = ProcessPoolExecutor(options.workers, get_context("spawn"), torch.set_num_threads, (1,))
    with pool:
        yield from pool.map(one, jobs)


def summed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means and 95 % intervals over seeds."""
    return {name: asdict(interval([row[name] for row in rows])) for name in rows[0] if isinstance(rows[0][name], float)}


def verdicts(runs: dict[str, list[dict[str, Any]]]) -> list[dict[str, str]]:
    """004's claims that this can decide."""

    def mean(name: str, measure: str) -> float:
        return sum(row[measure] for row in runs[name]) / len(runs[name])

    def verdict(claim: str, holds: bool, why: str) -> dict[str, str]:
        return {"claim": claim, "verdict": "holds" if holds else "does not hold", "why": why}

    def told(measure: str, *names: str) -> str:
        return ", ".join(f"{name} {mean(name, measure):.4g}" for name in names)

    drop = mean("dense vi", "accuracy") - mean("ssvi 95 %", "accuracy")
    by_scale = {kind: [mean(f"{kind} scale {s:g}", "accuracy") for s in SCALES] for kind in ("vi", "ssvi")}
    ranges = {kind: max(values) - min(values) for kind, values in by_scale.items()}
    same = paired_t(*([row["accuracy"] for row in runs[n]] for n in ("ssvi 90 %", "removal snr")))
    best = max(CRITERIA, key=lambda name: mean(f"removal {name}", "accuracy"))
    return [
        verdict(
            "table 1: 20x compression with under 2 % accuracy drop against dense VI on CIFAR-10",
            drop < 0.02,
            told("accuracy", "dense vi", "ssvi 90 %", "ssvi 95 %") + "; ECE " + told("ece", "dense vi", "ssvi 95 %"),
        ),
        verdict(
            "table 2: SSVI beats variational dropout in accuracy, loss and ECE",
            all(
                sign * (mean("ssvi 95 %", m) - mean("variational dropout", m)) > 0
                for m, sign in (("accuracy", 1), ("nll", -1), ("ece", -1))
            ),
            "; ".join(
                f"{m} {told(m, 'ssvi 95 %', 'variational dropout')}" for m in ("accuracy", "nll", "ece", "density")
            ),
        ),
        verdict(
            "figure 2, left: SSVI loses less accuracy with sparsity than RigL",
            mean("ssvi 90 %", "accuracy") - mean("ssvi 95 %", "accuracy")
            < mean("rigl 90 %", "accuracy") - mean("rigl 95 %", "accuracy"),
            told("accuracy", "ssvi 90 %", "ssvi 95 %", "rigl 90 %", "rigl 95 %"),
        ),
        verdict(
            "figure 2, right: from an initial scale of 0.001 to 0.01 dense VI deteriorates, SSVI does not",
            ranges["vi"] > 0.02 > ranges["ssvi"],
            f"accuracy at {SCALES}: dense vi {_list(by_scale['vi'])}, ssvi 90 % {_list(by_scale['ssvi'])}",
        ),
        verdict(
            "figure 2: SNR(|θ|) is the best removal criterion",
            mean("ssvi 90 %", "accuracy") > mean(f"removal {best}", "accuracy"),
            told("accuracy", "ssvi 90 %", *(f"removal {name}" for name in CRITERIA))
            + f"; against |μ|/σ, which orders weights alike, {same.difference:+.4f} (p {same.p}), which is chance",
        ),
        verdict(
            "purpose: SSVI trains in less wall-clock time than the plain dense network",
            mean("ssvi 95 %", "training_cpu_seconds") < mean("deterministic", "training_cpu_seconds"),
            "seconds of one core: " + told("training_cpu_seconds", *METHODS) + "; for ResNet-18 see sparse.json",
        ),
    ]


def _list(values: list[float]) -> str:
    return ", ".join(f"{value:.4f}" for value in values)


def main() -> None:
    """Train, judge, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("LEANBAYES_DATA", "data"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--images", type=int, default=8_000)
    parser.add_argument("--validation", type=int, default=1_000)
    parser.add_argument("--test", type=int, default=5_000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cache", type=Path, default=ROOT / "out" / "ssvi_cifar")
    parser.add_argument("--out", type=Path, default=RESULTS / "ssvi_cifar.json")
    options = parser.parse_args()
    setting = Setting(options.images, options.validation, options.test, options.epochs)
    specs = dict(METHODS)
    specs |= {f"vi scale {s:g}": f"{DENSE},init_scale={s}" for s in SCALES[:-1]}
    specs |= {f"ssvi scale {s:g}": f"ssvi:density=0.1,init_scale={s}" for s in SCALES[:-1]}
    specs |= {f"removal {name}": f"ssvi:density=0.1,removal={name}" for name in CRITERIA}
    jobs = [Job(name, spec, seed) for name, spec in specs.items() for seed in range(options.seeds)]
    runs: dict[str, list[dict[str, Any]]] = {}
    for job, found in zip(jobs, all_done(jobs, options, setting), strict=True):
        runs.setdefault(job.name, []).append(found)
    judgements = verdicts(runs | {"vi scale 0.01": runs["dense vi"], "ssvi scale 0.01": runs["ssvi 90 %"]})
    for verdict in judgements:
        print(f"{verdict['verdict']}: {verdict['claim']}\n    {verdict['why']}")
    pairs = runs["ssvi 90 %"][0]["overlaps"]
    overlapping = {pair: sum(row["overlaps"][pair] for row in runs["ssvi 90 %"]) / options.seeds for pair in pairs}
    results = {
        "summary": {name: summed(rows) for name, rows in runs.items()},
        "overlap_of_removed": overlapping,
        "verdicts": judgements,
        "runs": runs,
    }
    write(options.out, results, asdict(setting) | {"seeds": options.seeds, "recipes": specs, "network": "small_resnet"})


if __name__ == "__main__":
    main()
