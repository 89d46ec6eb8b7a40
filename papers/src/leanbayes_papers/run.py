"""The runner: jobs in processes of one thread, each result kept as soon as it is there, one record in the end."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from leanbayes._files import write_text
from leanbayes._provenance import git, surroundings
from leanbayes.errors import FileError, InputError, UnknownName
from leanbayes.lab.data import data_dir, load_data
from leanbayes.lab.statistics import interval
from leanbayes_papers.base import Experiment, Job, Outcome, Results, Size, Verdict
from leanbayes_papers.figures import save_figure

__all__ = ["FORMAT", "reproduce"]

FORMAT = 1

Watcher = Callable[[int, int], None]
"""Told at the start and after each job how many are done, of how many."""


def reproduce(
    experiment: Experiment,
    size: str,
    *,
    folder: Path | str | None = None,
    seeds: Sequence[int] | None = None,
    workers: int = 1,
    out: Path | str = "docs/results/experiments",
    cache: Path | str = "out/experiments",
    watch: Watcher | None = None,
) -> dict[str, Any]:
    """Run an experiment at a size; the record, which is also in ``out`` as ``name-size.json``, figures beside it.

    A job's result depends on the experiment's settings, the recipe and the seed, and on nothing else: with these it is
    kept in ``cache``, so a run that was stopped goes on where it was, and the same command gives the same tables.
    A job that fails is recorded with its error and tried again the next time; the others go on.

    Args:
        experiment: see `EXPERIMENTS`.
        size: "smoke", "cpu" or "paper".
        folder: the data directory; by default what LEANBAYES_DATA names, or ``data``.
        seeds: by default as many as the size says, from 0.
        workers: processes, each with one thread; 1 is this process.
        out: the folder of the record.
        cache: the folder of results of single jobs; remove it to begin anew.
        watch: told how far it is.
    """
    if size not in experiment.sizes:
        raise UnknownName.of("size", size, experiment.sizes)
    chosen = experiment.sizes[size]
    judged_by = list(range(chosen.seeds)) if seeds is None else list(seeds)
    if not judged_by or len(set(judged_by)) < len(judged_by) or min(judged_by) < 0:
        raise InputError(f"seeds must be different numbers from 0 on, got {judged_by}")
    if workers < 1:
        raise InputError(f"workers must be at least 1, got {workers}")
    top = data_dir() if folder is None else Path(folder)
    for name in chosen.needs:  # before any training: what is missing, and where to get it
        load_data(name, top)
    jobs = experiment.jobs(chosen, judged_by)
    store, place = Path(cache) / f"{experiment.name}-{size}", Path(out)
    for made in (store, place):
        _make(made)

    begin = time.perf_counter()
    works = [_Work(experiment.run, job, chosen, top, store / _file(experiment, job, chosen, top)) for job in jobs]
    told = watch or (lambda done, total: None)  # noqa: ARG005
    told(0, len(jobs))
    rows = []
    for row in _all_done(works, workers):
        rows.append(row)
        told(len(rows), len(jobs))
    results = Results([(job, row["result"]) for job, row in zip(jobs, rows, strict=True) if row["error"] is None])
    outcome, error = _concluded(experiment, results, chosen)
    figures = {}
    for name, figure in outcome.figures.items():
        file = place / f"{experiment.name}-{size}-{name}.svg"
        save_figure(figure, file)
        figures[name] = file.name
    record = {
        "kind": "experiment",
        "format": FORMAT,
        "name": experiment.name,
        "size": size,
        "title": experiment.title,
        "scaled": chosen.scaled,
        "command": f"leanbayes reproduce {experiment.name} --size {size}{_given(seeds)}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **surroundings(),
        "commits_of_jobs": sorted({row["commit"] or "none" for row in rows if row["error"] is None}),
        "data": list(chosen.data),
        "seeds": judged_by,
        "workers": workers,
        "minutes_stated": chosen.minutes,
        "minutes_taken": (time.perf_counter() - begin) / 60,
        "minutes_of_jobs": sum(row["seconds"] for row in rows) / 60,
        "settings": chosen.settings(),
        "verdicts": [asdict(verdict) for verdict in outcome.verdicts],
        "tables": {title: [dict(row) for row in table] for title, table in outcome.tables.items()},
        "figures": figures,
        "seconds": _seconds(results),
        "error": error,
        "failed": [asdict(job) | {"error": row["error"]} for job, row in zip(jobs, rows, strict=True) if row["error"]],
        "jobs": [asdict(job) | {"metrics": result["metrics"]} for job, result in results.found],
    }
    write_text(place / f"{experiment.name}-{size}.json", json.dumps(record, indent=1, allow_nan=False) + "\n")
    return record


@dataclass(frozen=True)
class _Work:
    """A job with all it needs in another process, and the file that keeps its result."""

    run: Callable[[Job, Size, Path | None], dict[str, Any]]
    job: Job
    size: Size
    folder: Path
    file: Path


def _file(experiment: Experiment, job: Job, size: Size, folder: Path) -> str:
    """A name that says all a result depends on."""
    key = [FORMAT, experiment.name, job.key(), size.key(), str(folder.resolve())]
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24] + ".json"


def _done(work: _Work) -> dict[str, Any]:
    """Read what was kept, or do the job and keep it."""
    kept = _read(work.file)
    if kept is not None:
        return kept
    begin = time.process_time()  # a job has one thread: on a core of its own it would take as long
    try:
        result = work.run(work.job, work.size, work.folder)
        text = json.dumps(result, allow_nan=False)
        row = {"result": json.loads(text), "error": None}  # as it will be read the next time
    except Exception as error:
        row = {"result": None, "error": _one_line(error)}
    row |= {"seconds": time.process_time() - begin, "commit": git("rev-parse", "HEAD")}
    if row["error"] is None:
        write_text(work.file, json.dumps(row))
    return row


def _all_done(works: Sequence[_Work], workers: int) -> Iterator[dict[str, Any]]:
    """Rows in the order of the jobs."""
    waiting = [work for work in works if _read(work.file) is None]
    if workers == 1 or len(waiting) < 2:
        with _one_thread():
            yield from map(_done, works)
        return
    pool = ProcessPoolExecutor(min(workers, len(waiting)), get_context("spawn"), torch.set_num_threads, (1,))
    try:
        futures = {work.file: pool.submit(_done, work) for work in waiting}
        for work in works:
            if work.file not in futures:
                yield _done(work)
                continue
            try:
                yield futures[work.file].result()
            except Exception as error:  # a process that was killed takes all that wait with it
                yield {"result": None, "error": _one_line(error), "seconds": 0.0, "commit": None}
    finally:
        pool.shutdown(cancel_futures=True)


def _read(path: Path) -> dict[str, Any] | None:
    """A kept row; what cannot be read is done again."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    whole = isinstance(found, dict) and {"result", "error", "seconds", "commit"} <= found.keys()
    return found if whole and isinstance(found["result"], dict) else None


@contextmanager
def _one_thread() -> Iterator[None]:
    """As in a process of its own: with more threads sums round apart."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _concluded(experiment: Experiment, results: Results, size: Size) -> tuple[Outcome, str | None]:
    """The outcome, and what went wrong; a claim without a verdict is a mistake in the experiment."""
    try:
        outcome = experiment.conclude(results, size)
        judged = [verdict.claim for verdict in outcome.verdicts]
        if sorted(map(repr, judged)) != sorted(map(repr, experiment.claims)):
            raise InputError(f"{experiment.name} must have one verdict on each of its {len(experiment.claims)} claims")
    except Exception as error:
        why = f"the results could not be concluded: {_one_line(error)}"
        return Outcome({}, [Verdict(claim, "not testable here", why) for claim in experiment.claims]), why
    return outcome, None


def _seconds(results: Results) -> dict[str, dict[str, dict[str, Any]]]:
    """Of each method the time of training and prediction on one core: apart from the tables, as it never repeats."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for method in results.methods():
        rows = [result.get("seconds", {}) for job, result in results.found if job.method == method]
        names = list(dict.fromkeys(name for row in rows for name in row))
        found[method] = {name: asdict(interval([row[name] for row in rows if name in row])) for name in names}
    return found


def _given(seeds: Sequence[int] | None) -> str:
    return "" if seeds is None else f" --seeds {' '.join(map(str, seeds))}"


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot make the folder {folder}: {error}; give another") from error
