"""A comparison whose runs are jobs of a queue: any number of workers train and judge them, and one process merges them.

A worker keeps each run in a folder of its own, which is a small comparison: checkpoints, model, scores and record lie
there as in the folder of a comparison. So a worker that takes a run over continues from its checkpoint. When all runs
are done, one process moves their files to the folder of the comparison, and writes the results.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from leanbayes._files import checksum
from leanbayes.errors import LeanBayesError
from leanbayes.lab.compare.record import Record, file_name
from leanbayes.lab.compare.single import Event, Watch, Watching, train_and_judge
from leanbayes.lab.data.task import Task
from leanbayes.lab.jobs import Crew, Job, Needs, Queue, is_full_disk
from leanbayes.lab.processes import only_user_of
from leanbayes.lab.recipes import Budget, Recipe, Run, settings

__all__ = ["QUEUE", "compare_by_crew"]

QUEUE = "queue"
_IN_THE_WAY = 60  # characters of a method in the key of a job; longer names get a digest


def compare_by_crew(
    task: Task,
    recipes: Mapping[str, Recipe],
    folder: Path,
    header: Mapping[str, Any],
    crew: Crew,
    *,
    seeds: Sequence[int],
    budget: Budget,
    samples: int,
    watch: Watch | None,
    about: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Have every recipe trained with every seed by a crew, and merge the runs; see `leanbayes.lab.compare.compare`."""
    identity = {key: header[key] for key in ("format", "task", "about", "budget", "samples")}
    identity |= {"seeds": list(seeds), "recipes": {name: settings(recipe) for name, recipe in recipes.items()}}
    queue = Queue(folder / QUEUE, identity, patience=crew.patience)
    runs = {_key(name, seed): (name, seed) for seed in seeds for name in recipes}
    nets: dict[int, dict[Any, Any]] = {}  # recipes of one seed share the plain networks that they start from

    def do(job: Job, attempt: Path) -> dict[str, Any]:
        name, seed = runs[job.key]
        record = Record(attempt, header, {name: recipes[name]})
        watching = Watching(watch, name, seed)
        if seed not in nets:
            nets.clear()
            nets[seed] = {}
        checkpoints = record.checkpoints(name, seed)
        run = Run(budget, seed, checkpoints, watching, nets[seed], watch_epochs=watching.remember)
        try:
            if not record.has(name, seed):
                train_and_judge(record, name, recipes[name], task, run, samples, about)
        except (LeanBayesError, RuntimeError, ValueError, ImportError, OSError) as error:
            if is_full_disk(error) or not attempt.is_dir():
                raise  # this says nothing about the method
            record.fail(name, recipes[name], seed, error)
        return {"method": name, "seed": seed}

    def report(keys: set[str]) -> None:
        for key in keys & runs.keys() if watch is not None else ():
            name, seed = runs[key]
            watch(Event(name, seed, "end", 1, 1, run_done=True))  # type: ignore[misc]

    with crew.working(queue):
        with queue.alone("record"), _only_user_of(folder):
            record = Record(folder, header, recipes)
        missing = [key for key, run in runs.items() if not record.has(*run)]
        report(runs.keys() - set(missing))
        queue.add([Job(key, crew.needs.both(_needs(recipes[runs[key][0]]))) for key in missing])
        with crew.collecting(queue, do, on_done=report) as is_first:
            if not is_first:
                results: dict[str, Any] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
                return results
            outcomes = {key: queue.outcome(key) for key in runs if key in queue.done()}
            with _only_user_of(folder):
                for key, outcome in outcomes.items():
                    if outcome.error is None:
                        _merge(queue.finished / key, folder, *runs[key])
                record = Record(folder, header, recipes)
                for key, outcome in outcomes.items():
                    if outcome.error is not None:
                        name, seed = runs[key]
                        record.fail(name, recipes[name], seed, LeanBayesError(outcome.error))
                record.order = {run: position for position, run in enumerate(runs.values())}
                record.header = record.header | {"jobs": [outcome.summary() for outcome in outcomes.values()]}
                return record.write_results()
    raise AssertionError("a crew that collects returns above")


def _key(name: str, seed: int) -> str:
    short = file_name(name)
    if len(short) > _IN_THE_WAY or short.startswith("."):
        short = f"{short[:_IN_THE_WAY].lstrip('.')}-{checksum(name.encode())}"
    return f"{short}-{seed}"


def _needs(recipe: Recipe) -> Needs:
    """Return what a recipe needs: a core for each process that it starts."""
    processes = settings(recipe).get("processes", 1)
    return Needs(cores=processes if isinstance(processes, int) else 1)


def _merge(source: Path, folder: Path, name: str, seed: int) -> None:
    """Move the files of one run. The record of the run comes last, so that a run with a record is complete."""
    short = file_name(name)
    arrays = folder / "arrays" / f"{short}.safetensors"
    moves = [(f"models/{short}-{seed}.lb", True), (f"cases/{short}-{seed}.csv", True)]
    moves += [(f"arrays/{short}.safetensors", not arrays.exists()), (f"runs/{short}-{seed}.json", True)]
    for path, wanted in moves:
        if wanted and (source / path).exists():
            with suppress(FileNotFoundError):  # a process that was stopped while it merged is back
                (source / path).replace(folder / path)


@contextmanager
def _only_user_of(folder: Path) -> Iterator[None]:
    """Keep out a comparison without a queue, where the disk has locks. Workers of a queue keep each other out."""
    lock = only_user_of(folder)
    try:
        lock.__enter__()
    except LeanBayesError:
        raise
    except OSError:  # a disk without locks
        yield
        return
    try:
        yield
    finally:
        with suppress(OSError):
            lock.__exit__(None, None, None)
