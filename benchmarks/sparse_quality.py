"""Train sparse Bayesian networks by local reparameterization, by mirrored draws and by IVON, and compare the results.

    python benchmarks/sparse_quality.py --data-dir DIRECTORY [DIRECTORY ...]

All networks store 5 % of their weights, which move during training, and have the same number of steps. ``local`` and
``mirrored`` are the recipe `ssvi` with Adam. ``ivon`` has natural gradients of mirrored draws, with the settings of the
recipe `lean`. ``local-block`` and ``mirrored-block`` store whole blocks of 16 output channels. Each method takes the
learning rate of three that has the least validation NLL on seed 0; the seeds 1 to 3 are the result. Everything is
scored on validation images, with 16 weight draws, and no test image is read. Seconds are processor time of one thread.
Writes docs/results/sparse_quality.json.
"""

import argparse
import json
import math
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

import leanbayes as lb
from harness import RESULTS, write
from leanbayes.errors import LeanBayesError
from leanbayes.lab.data import Task, load_data
from leanbayes.lab.recipes import Budget, Run, parse, prepare
from leanbayes.lab.recipes.lean import Lean
from leanbayes_papers.training import small_task
from promise_networks import cifar_resnet, trial_cnn, whitening_filters

DENSITY, EPOCHS, BATCH, SEEDS = 0.05, 10, 64, (1, 2, 3)
COUNTS = (5_000, 2_000, 100)
RATES = (2e-3, 6e-3, 18e-3)
TASKS = ("fashion-mnist", "cifar10")
METHODS = ("local", "mirrored", "ivon", "local-block", "mirrored-block")
BLOCK = 16


def train(method: str, task: Task, lr: float, seed: int) -> lb.Bayesian:
    """Train one network."""
    if method != "ivon":
        propagate, _, blocks = method.partition("-")
        spec = parse(f"ssvi:density={DENSITY},propagate={propagate},block={BLOCK if blocks else 1}")
        predictor = prepare(spec, task, Run(Budget(EPOCHS, BATCH, lr=lr, schedule="cosine"), seed)).predictor
        assert isinstance(predictor, lb.Bayesian)
        return predictor
    torch.manual_seed(seed)
    model = task.model()
    bnn = lb.Bayesian(model, subspace=lb.sparse(DENSITY, seed=seed), propagate="mirrored")
    data = lb.train.Arrays(*task.train.tensors, batch_size=BATCH)
    steps, recipe = EPOCHS * math.ceil(len(data.x) / BATCH), parse("lean")
    assert isinstance(recipe, Lean)
    lb.fit(
        bnn,
        data,
        likelihood=task.likelihood,
        epochs=EPOCHS,
        optimizer=lb.Optimization(**recipe.optimization(steps, lr, task.likelihood)),
        rewire=lb.Rewire(every=max(1, round(0.75 * steps / 40))),
    )
    return bnn


def score(method: str, task: Task, lr: float, seed: int) -> dict[str, float]:
    """Train one network, and score it on the validation images by weight draws."""
    begin = time.process_time()
    bnn = train(method, task, lr, seed)
    seconds = time.process_time() - begin
    bnn.predict_by = lb.propagate.Sample()
    batches = list(zip(*(tensor.split(250) for tensor in task.validation.tensors), strict=True))
    scores = lb.evaluate(bnn, batches, likelihood=task.likelihood, samples=16).metrics
    row = {key: scores[key] for key in ("accuracy", "nll", "ece")} | {"seconds": seconds}
    print(method, lr, seed, {key: round(value, 4) for key, value in row.items()}, flush=True)
    return row


def load(name: str, folders: list[str]) -> Task:
    """Read a data set from the first folder that has it, and give it its network."""
    for folder in folders:
        try:
            task = small_task(load_data(name, folder), COUNTS)
        except LeanBayesError as error:
            problem = error
            continue
        images = task.train.tensors[0]
        model = trial_cnn if name == "fashion-mnist" else partial(cifar_resnet, whitening_filters(images), width=16)
        return replace(task, model=model)
    raise SystemExit(f"{name} is in none of the folders: {problem}")


def _read(out: Path) -> dict[str, Any]:
    return dict(json.loads(out.read_text())["results"]) if out.exists() else {}


def main() -> None:
    """Do the trainings that the record does not have yet."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data-dir", nargs="+", required=True, help="folders in which the data sets are looked for")
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=TASKS)
    parser.add_argument("--out", type=Path, default=RESULTS / "sparse_quality.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.tasks:
        task = load(name, options.data_dir)
        for method in METHODS:
            if method in _read(options.out).get(name, {}):
                continue
            tuning = {lr: score(method, task, lr, 0) for lr in RATES}
            lr = min(tuning, key=lambda rate: tuning[rate]["nll"])
            seeds = {seed: score(method, task, lr, seed) for seed in SEEDS}
            results = _read(options.out)  # another process may have written meanwhile
            results.setdefault(name, {})[method] = {"lr": lr, "tuning": tuning, "seeds": seeds}
            write(options.out, results, {"density": DENSITY, "epochs": EPOCHS, "batch": BATCH, "images": COUNTS[0]})


if __name__ == "__main__":
    main()
