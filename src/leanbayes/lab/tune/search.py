"""`tune`: the best options of a recipe, by the validation set."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from leanbayes._files import write_text
from leanbayes.errors import InputError, LeanBayesError, NonFinite, UnknownName
from leanbayes.evaluation import evaluate
from leanbayes.lab.data.task import Task, length
from leanbayes.lab.recipes import Budget, Run, parse, prepare, settings
from leanbayes.lab.recipes.base import Trained
from leanbayes.lab.recipes.run import Watcher
from leanbayes.lab.tune.space import Space
from leanbayes.lab.tune.study import Study, open_study
from leanbayes.metrics import metric_named

__all__ = ["tune"]

FORMAT = 1


def tune(
    task: Task,
    method: str,
    *,
    storage: Path,
    search: Mapping[str, str] | None = None,
    trials: int = 20,
    metric: str = "nll",
    study: str = "tune",
    seed: int = 0,
    budget: Budget | None = None,
    samples: int = 32,
    out: Path | None = None,
    watch: Watcher | None = None,
    about: Mapping[str, Any] | None = None,
    command: str = "",
) -> dict[str, Any]:
    """Search the options of a recipe, by Optuna's tree-structured Parzen estimator; the record of all trials.

    002's discussion: the weight of the KL term decides most, and searching it outright was the fastest and most
    reliable way. Every trial is trained on the training set and scored on the validation set. 002 and 004 choose on
    the test set; here it is not looked at. What won is chosen on the validation set, so its score there is too good:
    judge ``record["best"]["method"]`` with `compare`.

    A study goes on where it was, after a kill too, until there are ``trials`` in all. Processes started with the same
    storage share the work, on one machine. All trials have the same seed, and in a process those with the same plain
    start train it once.

    Args:
        task: data, model and likelihood.
        method: a recipe's specification; what it fixes is not searched.
        storage: the file of the study.
        search: by option ``low..high``, ``low..high:log`` or ``value,value``; see `Space`. By default the weight of the
            KL, the initial scale and the rate, as far as the recipe has them.
        trials: in all, those of earlier runs and other processes with them.
        metric: what is best, any of `evaluate` that has a better side, but for those of shifted sets.
        study: its name in the storage.
        seed: of training and of the search.
        budget: what one network may cost.
        samples: draws for each prediction.
        out: a file for the record, written anew after each trial.
        watch: told how far it is.
        about: whatever else must be the same for a study to go on, as JSON.
        command: kept with the record.
    """
    if trials < 1 or samples < 1:
        raise InputError(f"need at least 1 trial and 1 sample, got {trials} and {samples}")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise InputError("a trial is trained in one process; start the command several times on one storage instead")
    budget = budget or Budget()
    space = Space(method, search)
    high = _is_high(metric, task, Run(budget, seed))
    identity = {
        "format": FORMAT,
        "task": _about_task(task, Run(budget, seed)),
        "recipe": settings(parse(method)),
        "search": {name: str(axis) for name, axis in space.axes.items()},
        "metric": metric,
        "seed": seed,
        "budget": asdict(budget),
        "samples": samples,
        "about": dict(about or {}),
    }
    nets: dict[Any, Any] = {}
    with open_study(Path(storage), study, identity, "maximize" if high else "minimize") as shared:
        header = {"kind": "tuning", "command": command, "study": study, "method": method} | identity
        record = _record(shared, space, header, high, out)
        _count(watch, record, trials)
        while (claimed := shared.claim(trials, space.distributions(), seed)) is not None:
            slot, trial = claimed
            told = None if watch is None else partial(_tell, watch, slot)
            try:
                run = Run(budget, seed, watch=told, nets=nets)
                trained = prepare(parse(space.method(space.values(trial.params))), task, run)
                metrics = _scores(trained, task, run, samples)
                value = _value(metric, metrics)
            except (LeanBayesError, RuntimeError, ValueError, ImportError, OSError) as error:
                shared.failed(trial, f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}")
            else:
                shared.done(trial, value, metrics=metrics, seconds=trained.seconds)
            record = _record(shared, space, header, high, out)
            _count(watch, record, trials)
    return record


def _is_high(metric: str, task: Task, run: Run) -> bool:
    """Whether high is better; a metric that this task does not have is known from an untrained network."""
    if metric.startswith("ood/"):
        raise InputError(f"{metric} needs shifted sets, which are for judging: some are made from the test set")
    direction = metric_named(metric).better
    if direction is None:
        raise InputError(f"{metric} is better neither high nor low; choose nll, or another that is")
    found = evaluate(run.new_model(task).eval(), run.loader(task.validation), likelihood=task.likelihood, samples=1)
    family = metric.partition("/")[0].partition("@")[0]
    if metric not in found.metrics and not any(note.startswith(family) for note in found.notes):
        raise UnknownName.of(
            f"metric of {task.name!r}", metric, [name for name in found.metrics if metric_named(name).better]
        )
    return direction == "high"


def _scores(trained: Trained, task: Task, run: Run, samples: int) -> dict[str, float]:
    batches = run.tracked(task.validation, "validation")
    generator = torch.Generator().manual_seed(run.seed)
    return evaluate(
        trained.predictor, batches, likelihood=trained.likelihood, samples=samples, generator=generator
    ).metrics


def _value(metric: str, metrics: Mapping[str, float]) -> float:
    if not math.isfinite(metrics.get(metric, math.nan)):
        raise NonFinite(f"there is no finite {metric} on the validation set, got {metrics.get(metric)}")
    return metrics[metric]


def _tell(watch: Watcher, slot: int, stage: str, done: int, total: int) -> None:
    watch(f"trial {slot}, {stage}", done, total)


def _count(watch: Watcher | None, record: Mapping[str, Any], trials: int) -> None:
    if watch is not None:
        watch("trials", sum(row["state"] in ("done", "failed") for row in record["trials"]), trials)


def _record(shared: Study, space: Space, header: Mapping[str, Any], high: bool, out: Path | None) -> dict[str, Any]:
    """All trials so far; written while no other process is at it, so that the last one written has them all."""
    with shared.alone():
        rows = []
        for row in shared.rows():
            values = space.values(row.pop("drawn"))
            rows.append(row | {"values": values, "method": space.method(values)})
        done = [row for row in rows if row["state"] == "done"]
        best = min(done, key=lambda row: -row["value"] if high else row["value"], default=None)
        record = {**header, "better": "high" if high else "low", "trials": rows, "best": best}
        if out is not None:
            write_text(out, json.dumps(record, indent=1))
    return record


def _about_task(task: Task, run: Run) -> dict[str, Any]:
    sizes = {name: length(getattr(task, name)) for name in ("train", "validation", "test")}
    parameters = sum(parameter.numel() for parameter in run.new_model(task).parameters())
    return {"name": task.name, "classes": list(task.classes), **sizes, "parameters": parameters}
