"""Which defaults should the variational recipes have? Writes docs/results/defaults.json.

    python benchmarks/defaults.py screen --data-dir DIRECTORY      # the present default, and one change at a time
    python benchmarks/defaults.py combine --data-dir DIRECTORY     # the best changes together
    python benchmarks/defaults.py confirm --data-dir DIRECTORY     # the best of these against the present, new seeds
    python benchmarks/defaults.py summary                          # what follows

A job trains one setting of one recipe on one task with one seed. Finished jobs stay in the record, so a run can be
killed and started again, and several processes may work on different ``--tasks``. A setting names all five factors, so
a job means the same after a default has changed.

The objective is the NLL of the setting minus that of the plain network with temperature, averaged over tasks, on a
second validation set of each task (see defaults_tasks.py). No test set is read. All trainings of a task have the same
epochs and learning rate; the latter is the best of three for the plain network, on a seed of its own. In a regression,
the variance is multiplied by a constant in place of a temperature.
"""

import argparse
import fcntl
import json
import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

import leanbayes as lb
from defaults_search import RECIPES, SEEDS, WITHOUT, combined, finalists, pooled, screening, summary
from defaults_tasks import TASKS
from harness import RESULTS, ROOT, record_of
from leanbayes.baselines import Temperature
from leanbayes.errors import LeanBayesError, ScalesDidNotMove
from leanbayes.lab.data import Task
from leanbayes.lab.recipes import Budget, Run, parse, prepare
from leanbayes.likelihood import Likelihood

OUT = RESULTS / "defaults.json"
PLAIN = "deterministic"
TUNING_SEED = 1000
RATES = (2e-3, 4e-3, 8e-3)
DRAWS = 16
_NETS: dict[tuple[str, int], dict[Any, Any]] = {}  # plain networks, which settings of one task and seed share


def main() -> None:
    """Do the jobs of one phase that the record does not have yet."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("phase", choices=["screen", "combine", "confirm", "summary"])
    parser.add_argument("--data-dir", default=".", help="the folder of the data sets")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--seeds", nargs="+", type=int, help="by default 0, and 1 to 3 to confirm")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.phase in ("confirm", "summary"):
        with _alone(options.out) as record:  # what is confirmed stays the same, whatever jobs come later
            for recipe in options.recipes:
                record.setdefault("finalists", {}).setdefault(recipe, finalists(record["jobs"], recipe))
    results = read(options.out)
    seeds = options.seeds or SEEDS.get(options.phase, ())
    for seed in seeds:
        for task in options.tasks:
            do(options, task, PLAIN, seed)
            for spec in _settings(
                options.phase, results, [r for r in options.recipes if task not in WITHOUT.get(r, ())]
            ):
                do(options, task, spec, seed)
    if options.phase == "summary":
        with _alone(options.out) as record:
            record["summary"] = summary(record["jobs"], record["finalists"])
            record["pooled"] = pooled(record["jobs"])
        print(json.dumps(record["summary"], indent=1))


def _settings(phase: str, results: dict[str, Any], recipes: list[str]) -> Iterator[str]:
    for recipe in recipes:
        if phase == "confirm":
            yield from results["finalists"][recipe]
        else:
            yield from screening(recipe) if phase == "screen" else combined(results["jobs"], recipe)


def do(options: argparse.Namespace, name: str, spec: str, seed: int) -> None:
    """Do one job unless the record has it."""
    key = f"{name} {spec} {seed}"
    record = read(options.out)
    if key in record["jobs"]:
        return
    lr = record["rates"].get(name) or _tuned(options, name)
    row = _trained(name, spec, seed, lr, options.data_dir)
    with _alone(options.out) as record:
        record["jobs"][key] = row
    print(f"{key} {row.get('nll', math.nan):.4f} {row.get('error', '')} in {row['seconds']:.1f} s", flush=True)


def read(out: Path) -> dict[str, Any]:
    """Return the results so far."""
    return dict(json.loads(out.read_text())["results"]) if out.exists() else {"rates": {}, "jobs": {}, "summary": {}}


@contextmanager
def _alone(out: Path) -> Iterator[dict[str, Any]]:
    """Change the record while no other process does. A kill leaves the old record or the new one."""
    (ROOT / "out").mkdir(exist_ok=True)
    with (ROOT / "out" / "defaults.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        results = read(out)
        yield results
        settings = {
            "draws": DRAWS,
            "rates": RATES,
            "tuning_seed": TUNING_SEED,
            "tasks": {name: f"{task.about}; {task.epochs} epochs" for name, task in TASKS.items()},
        }
        new = out.with_suffix(".new")
        new.write_text(json.dumps(record_of(results, settings), indent=1) + "\n")
        new.replace(out)


def _tuned(options: argparse.Namespace, name: str) -> float:
    """Choose the learning rate with which the plain network with temperature has the least NLL."""
    rows = {lr: _trained(name, PLAIN, TUNING_SEED, lr, options.data_dir) for lr in RATES}
    lr = min(rows, key=lambda rate: rows[rate].get("scaled_nll", math.inf))
    with _alone(options.out) as record:
        record["rates"][name] = lr
        record.setdefault("rate_nll", {})[name] = {str(rate): row.get("scaled_nll") for rate, row in rows.items()}
    return lr


@cache
def _task(name: str, folder: str, seed: int) -> Task:
    return TASKS[name].make(folder, seed)


def _trained(name: str, spec: str, seed: int, lr: float, folder: str) -> dict[str, Any]:
    """Train a setting and return its NLL, with and without a temperature, and how its scales moved."""
    small, task = TASKS[name], _task(name, folder, seed)
    nets = {} if seed == TUNING_SEED else _NETS.setdefault((name, seed), {})
    run = Run(Budget(small.epochs, small.batch_size, lr=lr), seed, nets=nets)
    begin = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ScalesDidNotMove)  # the record says it
            trained = prepare(parse(spec), task, run)
        row = _scores(trained.predictor, trained.likelihood, task)
    except LeanBayesError as error:
        return {"error": f"{type(error).__name__}: {error}"[:200], "seconds": time.process_time() - begin}
    scales = {stage: asdict(scales) for stage, scales in trained.scales.items()}
    return row | {"seconds": round(time.process_time() - begin, 2), "scales": _rounded(scales)}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(inside) for key, inside in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(inside) for inside in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _batches(data: Any, size: int = 400) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(*(tensor.split(size) for tensor in data.tensors), strict=True))


def _scores(network: nn.Module, likelihood: Likelihood, task: Task) -> dict[str, Any]:
    source = torch.Generator().manual_seed(7)
    if not likelihood.has_logits:
        (known, seen), (new, wanted) = (data.tensors for data in (task.validation, task.test))
        chosen = lb.predict(network, known, likelihood=likelihood, samples=DRAWS, generator=source)
        judged = lb.predict(network, new, likelihood=likelihood, samples=DRAWS, generator=source)
        factor = float(((seen - chosen.mean).square() / chosen.total).mean())
        return {"nll": _nll(judged, wanted, 1.0), "scaled_nll": _nll(judged, wanted, factor), "scale": factor}
    row = {"nll": _evaluated(network, likelihood, task, source)}
    scaled = Temperature.fit(network, _batches(task.validation), likelihood, samples=DRAWS, generator=source)
    return row | {"scaled_nll": _evaluated(scaled, likelihood, task, source), "scale": scaled.temperature}


def _evaluated(network: nn.Module, likelihood: Likelihood, task: Task, source: torch.Generator) -> float:
    batches = _batches(task.test)
    return lb.evaluate(network, batches, likelihood=likelihood, samples=DRAWS, generator=source).metrics["nll"]


def _nll(prediction: lb.Prediction, targets: torch.Tensor, factor: float) -> float:
    """The mean NLL of the Gaussian with the mean of the prediction and a multiple of its variance."""
    variance = factor * prediction.total.double()
    squares = (targets - prediction.mean).double().square() / variance
    return float(0.5 * (squares + variance.log() + math.log(2 * math.pi)).mean())


if __name__ == "__main__":
    main()
