"""`tune` finds the best options of a recipe on the validation set."""

import json
import math
import os
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from leanbayes._files import checksum, write_text
from leanbayes.errors import FileError, InputError, LeanBayesError, NonFinite, UnknownName
from leanbayes.evaluation import evaluate
from leanbayes.lab.data.task import Task, length
from leanbayes.lab.jobs import Crew, Job, Queue
from leanbayes.lab.recipes import Budget, Run, Trained, parse, prepare, settings
from leanbayes.lab.recipes.run import Watcher
from leanbayes.lab.tune.space import Space
from leanbayes.lab.tune.study import Study, open_study
from leanbayes.metrics import metric_named

__all__ = ["Search", "tune"]

FORMAT = 1


@dataclass(frozen=True)
class Search:
    """What is searched, and how every trial is trained and scored.

    Args:
        options: the range or the choices of each option, as ``low..high``, ``low..high:log`` or ``value,value``; see
            `Space`. None searches the weight of the KL, the initial scale and the rate, if the recipe has them.
        trials: how many trials there are in all, those of earlier runs and of other processes included.
        metric: the metric that decides, on the validation set. It may be any metric of `leanbayes.evaluate` that has a
            better side, except those of shifted sets.
        seed: the seed of the search, and of the training in every trial.
        budget: what the training of one network may cost.
        samples: how many weight draws each prediction averages.
    """

    options: Mapping[str, str] | None = None
    trials: int = 20
    metric: str = "nll"
    seed: int = 0
    budget: Budget = field(default_factory=Budget)
    samples: int = 32

    def __post_init__(self) -> None:
        if self.trials < 1 or self.samples < 1:
            raise InputError(f"need at least 1 trial and 1 sample, got {self.trials} and {self.samples}")


def tune(
    task: Task,
    method: str,
    search: Search | None = None,
    *,
    storage: Path,
    study: str = "tune",
    out: Path | None = None,
    watch: Watcher | None = None,
    about: Mapping[str, Any] | None = None,
    command: str = "",
    crew: Crew | None = None,
) -> dict[str, Any]:
    """Search the options of a recipe with Optuna's tree-structured Parzen estimator.

    The weight of the KL term decides most. VDP++ reports that searching it directly was the fastest and most reliable
    way. Every trial is trained on the training set and scored on the validation set. The test set is not used, although
    VDP++ and SSVI (Li et al. 2024) choose on it. The winner is chosen on the validation set, so its score there is too
    good: judge ``record["best"]["method"]`` with `leanbayes.lab.compare.compare`.

    A study that was stopped or killed continues until it has ``search.trials`` trials. Several processes on one machine
    that use the same storage share the work. All trials have the same seed. Trials of one process that start from the
    same plain network train it once.

    Args:
        task: the data, the model and the likelihood.
        method: the specification of a recipe; the options that it gives are not searched.
        search: what to search, and how to train and score.
        storage: the file of the study.
        study: the name of the study in the file.
        out: the file for the record, which is written anew after each trial; None writes none.
        watch: is called after each step.
        about: other facts, as JSON, that must be the same for a study to continue.
        command: is stored with the record.
        crew: the workers that do the trials, each of which is a job; None lets this process do them.

    Returns:
        The record: what was searched, all trials, and the best of them.
    """
    search = search or Search()
    search = replace(search, budget=search.budget.fitting(task))
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise InputError("a trial is trained in one process; start the command several times on one storage instead")
    space = Space(method, search.options)
    high = _high_is_better(search.metric, task, Run(search.budget, search.seed))
    identity = _identity(task, method, search, space) | {"about": dict(about or {})}
    header = {"kind": "tuning", "command": command, "study": study, "method": method} | identity
    study_file = _StudyFile(Path(storage), study, identity, "maximize" if high else "minimize")
    if crew is not None:
        return _tune_by_crew(crew, study_file, task, search, space, header, out, watch)
    if study_file.queue.exists():
        raise FileError(
            f"workers share the trials of {storage}, or did so until they were killed; continue with --executor "
            f"shared, or remove {study_file.queue} to do the trials again that were under way"
        )
    nets: dict[Any, Any] = {}  # trials share the plain networks that they start from
    with study_file.open() as shared:
        record = _write_record(shared, space, header, high, out)
        _report_trials(watch, record, search.trials)
        while (claimed := shared.claim(search.trials, space.distributions(), search.seed)) is not None:
            slot, trial = claimed
            run = Run(search.budget, search.seed, watch=_watcher(watch, slot), nets=nets)
            try:
                value, details = _trained(task, search, space, trial.params, run)
            except OSError:
                raise  # a full disk says nothing about the options; the next run does this trial again
            except (LeanBayesError, RuntimeError, ValueError, ImportError) as error:
                shared.failed(trial, f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}")
            else:
                shared.done(trial, value, **details)
            record = _write_record(shared, space, header, high, out)
            _report_trials(watch, record, search.trials)
    return record


@dataclass(frozen=True)
class _StudyFile:
    """Where a study is: its file, its name, what it is about, and which values are better."""

    file: Path
    name: str
    identity: Mapping[str, Any]
    direction: str

    @property
    def queue(self) -> Path:
        """The folder of the queue, if a crew does the trials."""
        return self.file.with_name(f"{self.file.name}.{checksum(self.name.encode())}.queue")

    def open(self, queued: Collection[int] | None = None) -> AbstractContextManager[Study]:
        """Open the study; ``queued`` are the slots that a queue has under way."""
        return open_study(self.file, self.name, self.identity, self.direction, queued)


def _tune_by_crew(
    crew: Crew,
    study_file: _StudyFile,
    task: Task,
    search: Search,
    space: Space,
    header: Mapping[str, Any],
    out: Path | None,
    watch: Watcher | None,
) -> dict[str, Any]:
    """Do the trials as the jobs of a queue. A worker without a job draws the next trial, from all that are done."""
    nets: dict[Any, Any] = {}
    study_file.file.parent.mkdir(parents=True, exist_ok=True)
    queue = Queue(study_file.queue, study_file.identity, patience=crew.patience)

    def do(job: Job, folder: Path) -> dict[str, Any]:  # noqa: ARG001
        run = Run(search.budget, search.seed, watch=_watcher(watch, job.payload["slot"]), nets=nets)
        value, details = _trained(task, search, space, job.payload["params"], run)
        return {"value": value, "details": details}

    def slots() -> list[int]:
        return [job.payload["slot"] for job in queue.jobs().values()]

    def store(study: Study) -> None:
        """Store the trials that are done."""
        for slot, trial in study.running().items():
            if _key(slot) in queue.done():
                outcome = queue.outcome(_key(slot))
                if outcome.result is None:
                    study.failed(trial, outcome.error or "")
                else:
                    study.done(trial, outcome.result["value"], **outcome.result["details"])

    def draw() -> bool:
        """Add a trial if there is a slot for one; return whether there may be more trials later."""
        with queue.alone("study"):
            if not queue.is_current():
                return False
            if queue.jobs().keys() - queue.leases.newest().keys():
                return True  # another worker has just added one
            with study_file.open(slots()) as study:
                store(study)
                claimed = study.claim(search.trials, space.distributions(), search.seed)
                if claimed is None:
                    return False
                slot, trial = claimed
                queue.add([Job(_key(slot), crew.needs, {"slot": slot, "params": trial.params})])
        return True

    with crew.working(queue):
        with queue.alone("study"), study_file.open(slots()) as study:
            ended = {row["trial"] for row in study.rows() if row["state"] in ("done", "failed")}
        earlier = len(ended.difference(slots()).intersection(range(search.trials)))

        def ended_now() -> int:
            return earlier + len(queue.done())

        def report(keys: set[str]) -> None:  # noqa: ARG001
            if watch is not None:
                watch("trials", ended_now(), search.trials)

        report(set())
        more = draw if crew.plan.executor.start is None else lambda: ended_now() < search.trials
        with crew.collecting(queue, do, more=more, on_done=report) as is_first, study_file.open(slots()) as study:
            if is_first:
                store(study)
            return _write_record(study, space, header, study_file.direction == "maximize", out if is_first else None)
    raise AssertionError("a crew that collects returns above")


def _key(slot: int) -> str:
    return f"trial-{slot}"


def _trained(
    task: Task, search: Search, space: Space, drawn: Mapping[str, Any], run: Run
) -> tuple[float, dict[str, Any]]:
    """Train one trial, and return its value, its other metrics and how long it took."""
    trained = prepare(parse(space.method(space.values(drawn))), task, run)
    metrics = _scores(trained, task, run, search.samples)
    return _value(search.metric, metrics), {"metrics": metrics, "seconds": trained.seconds}


def _identity(task: Task, method: str, search: Search, space: Space) -> dict[str, Any]:
    """Everything that changes what a trial gives; a study continues only if all of it is the same."""
    run = Run(search.budget, search.seed)
    sizes = {name: length(getattr(task, name)) for name in ("train", "validation", "test")}
    parameters = sum(parameter.numel() for parameter in run.new_model(task).parameters())
    return {
        "format": FORMAT,
        "task": {"name": task.name, "classes": list(task.classes), **sizes, "parameters": parameters},
        "recipe": settings(parse(method)),
        "search": {name: str(axis) for name, axis in space.axes.items()},
        "metric": search.metric,
        "seed": search.seed,
        "budget": asdict(search.budget),
        "samples": search.samples,
    }


def _high_is_better(metric: str, task: Task, run: Run) -> bool:
    """Whether high values are better; an untrained network shows whether the task has this metric at all."""
    if metric.startswith("ood/"):
        raise InputError(
            f"{metric} needs shifted sets, which are for judging only, because some are made from the test set; "
            "choose another metric, such as nll"
        )
    direction = metric_named(metric).better
    if direction is None:
        raise InputError(f"{metric} is better neither high nor low; choose a metric with a better side, such as nll")
    model = run.new_model(task).eval()
    evaluation = evaluate(model, run.loader(task.validation), likelihood=task.likelihood, samples=1)
    family = metric.partition("/")[0].partition("@")[0]
    if metric not in evaluation.metrics and not any(note.startswith(family) for note in evaluation.notes):
        choices = [name for name in evaluation.metrics if metric_named(name).better]
        raise UnknownName.of(f"metric of {task.name!r}", metric, choices)
    return direction == "high"


def _scores(trained: Trained, task: Task, run: Run, samples: int) -> dict[str, float]:
    return evaluate(
        trained.predictor,
        run.tracked(task.validation, "validation"),
        likelihood=trained.likelihood,
        samples=samples,
        generator=torch.Generator().manual_seed(run.seed),
        in_units=task.scored,
    ).metrics


def _value(metric: str, metrics: Mapping[str, float]) -> float:
    if not math.isfinite(metrics.get(metric, math.nan)):
        raise NonFinite(f"there is no finite {metric} on the validation set, got {metrics.get(metric)}")
    return metrics[metric]


def _watcher(watch: Watcher | None, slot: int) -> Watcher | None:
    return None if watch is None else partial(_report_step, watch, slot)


def _report_step(watch: Watcher, slot: int, stage: str, done: int, total: int) -> None:
    watch(f"trial {slot}, {stage}", done, total)


def _report_trials(watch: Watcher | None, record: Mapping[str, Any], trials: int) -> None:
    if watch is not None:
        watch("trials", sum(row["state"] in ("done", "failed") for row in record["trials"]), trials)


def _write_record(
    shared: Study, space: Space, header: Mapping[str, Any], high: bool, out: Path | None
) -> dict[str, Any]:
    """Return the record of all trials so far, and write it.

    It is written while no other process has the study, so that the record which is written last has all trials.
    """
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
