"""The runner: it does the jobs of a study in processes of one thread, keeps each result, and writes one record."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from leanbayes._files import sweep, write_text
from leanbayes._provenance import git, surroundings
from leanbayes.errors import FileError, InputError, UnknownName
from leanbayes.lab.data import data_dir, load_data
from leanbayes.lab.jobs import Crew, Queue, is_full_disk
from leanbayes.lab.jobs import Job as QueueJob
from leanbayes.lab.processes import worker_processes
from leanbayes.lab.statistics import interval
from leanbayes_papers.scales import collecting
from leanbayes_papers.study import Job, Outcome, Results, Size, Study, Verdict
from leanbayes_papers.verdicts import judged

__all__ = ["FORMAT", "reproduce"]

FORMAT = 1
_QUEUE = "queue"

Watcher = Callable[[int, int], None]
"""A function that is called at the start and after each job with the numbers of finished jobs and of all jobs."""


def reproduce(
    study: Study,
    size: str,
    *,
    folder: Path | str | None = None,
    seeds: Sequence[int] | None = None,
    workers: int = 1,
    out: Path | str = "docs/results/experiments",
    cache: Path | str = "out/experiments",
    watch: Watcher | None = None,
    crew: Crew | None = None,
) -> dict[str, Any]:
    """Run a study at one size, and write its record to ``out`` as ``name-size.json`` with the figures beside it.

    The result of a job depends on the settings of the study, the recipe, the seed and the data directory, and on
    nothing else. Each result is kept in ``cache`` under these. So a run that was stopped goes on where it was, and the
    same command gives the same tables. If a job fails, its error is recorded, the other jobs go on, and the next run
    tries it again.

    Args:
        study: one of `STUDIES`.
        size: "smoke", "cpu" or "paper".
        folder: the data directory; by default the one that LEANBAYES_DATA names, or ``data``.
        seeds: the seeds to run; by default as many as the size states, from 0.
        workers: how many processes run at once, each with one thread; 1 stays in this process.
        out: the folder of the record.
        cache: the folder of the results of single jobs; remove it to start afresh.
        watch: a function that receives the numbers of finished jobs and of all jobs.
        crew: the workers that do the jobs instead of processes of this one; they share the folder ``cache``.

    Returns:
        The record.
    """
    if size not in study.sizes:
        raise UnknownName.of("size", size, study.sizes)
    chosen = study.sizes[size]
    chosen_seeds = list(range(chosen.seeds)) if seeds is None else list(seeds)
    if not chosen_seeds or len(set(chosen_seeds)) < len(chosen_seeds) or min(chosen_seeds) < 0:
        raise InputError(f"seeds must be different numbers from 0 on, got {chosen_seeds}")
    if workers < 1:
        raise InputError(f"workers must be at least 1, got {workers}")
    top = data_dir() if folder is None else Path(folder)
    for name in chosen.needs:  # a missing data set is reported before anything is trained
        load_data(name, top)
    jobs = study.jobs(chosen, chosen_seeds)
    store, destination = Path(cache) / f"{study.name}-{size}", Path(out)
    for directory in (store, destination):
        _make(directory)
        sweep(directory)

    begin = time.perf_counter()
    works = [_Work(study.run, job, chosen, top, store / _file(study, job, chosen, top)) for job in jobs]
    report = watch or (lambda done, total: None)  # noqa: ARG005
    report(0, len(jobs))

    def conclude(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        minutes = (time.perf_counter() - begin) / 60
        return _record(study, size, chosen, jobs, rows, seeds, chosen_seeds, workers, minutes, destination)

    if crew is not None:
        record_file = destination / f"{study.name}-{size}.json"
        return _by_crew(crew, store / _QUEUE, study, works, report, conclude, record_file)
    if (store / _QUEUE).exists():
        raise FileError(
            f"workers share the jobs in {store}, or did so until they were killed; continue with --executor shared, or "
            f"remove {store / _QUEUE} to do the jobs again that have no result yet"
        )
    rows = []
    for row in _all_done(works, workers):
        rows.append(row)
        report(len(rows), len(jobs))
    return conclude(rows)


def _record(
    study: Study,
    size: str,
    chosen: Size,
    jobs: Sequence[Job],
    rows: Sequence[dict[str, Any]],
    seeds: Sequence[int] | None,
    chosen_seeds: Sequence[int],
    workers: int,
    minutes: float,
    destination: Path,
) -> dict[str, Any]:
    """Draw the conclusions from the rows of all jobs, and write the record and the figures."""
    results = Results([(job, row["result"]) for job, row in zip(jobs, rows, strict=True) if row["error"] is None])
    outcome, error = _concluded(study, results, chosen)
    from leanbayes_papers.figures import save_figure  # slow to import, and the list of commands loads this module

    figures = {}
    for name, figure in outcome.figures.items():
        file = destination / f"{study.name}-{size}-{name}.svg"
        save_figure(figure, file)
        figures[name] = file.name
    record = {
        "kind": "experiment",
        "format": FORMAT,
        "name": study.name,
        "size": size,
        "title": study.title,
        "scaled": chosen.scaled,
        "command": f"leanbayes reproduce {study.name} --size {size}{_seed_options(seeds)}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **surroundings(),
        "commits_of_jobs": sorted({row["commit"] or "none" for row in rows if row["error"] is None}),
        "data": list(chosen.data),
        "seeds": list(chosen_seeds),
        "workers": workers,
        "minutes_stated": chosen.minutes,
        "minutes_taken": minutes,
        "minutes_of_jobs": sum(row["seconds"] for row in rows) / 60,
        "settings": chosen.settings(),
        "verdicts": [asdict(verdict) for verdict in outcome.verdicts],
        "tables": {title: [dict(row) for row in table] for title, table in outcome.tables.items()},
        "figures": figures,
        "seconds": _seconds(results),
        "error": error,
        "failed": [asdict(job) | {"error": row["error"]} for job, row in zip(jobs, rows, strict=True) if row["error"]],
        "jobs": [
            asdict(job) | {name: result[name] for name in ("metrics", "scales") if name in result}
            for job, result in results.runs
        ],
    }
    write_text(destination / f"{study.name}-{size}.json", json.dumps(record, indent=1, allow_nan=False) + "\n")
    return record


@dataclass(frozen=True)
class _Work:
    """A job with everything that another process needs to do it, and the file that keeps its result."""

    run: Callable[[Job, Size, Path | None], dict[str, Any]]
    job: Job
    size: Size
    folder: Path
    file: Path


def _file(study: Study, job: Job, size: Size, folder: Path) -> str:
    """Return a file name made of everything that the result of a job depends on."""
    key = [FORMAT, study.name, job.key(), size.key(), str(folder.resolve())]
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24] + ".json"


def _by_crew(
    crew: Crew,
    folder: Path,
    study: Study,
    works: Sequence[_Work],
    report: Watcher,
    conclude: Callable[[Sequence[dict[str, Any]]], dict[str, Any]],
    record_file: Path,
) -> dict[str, Any]:
    """Have the jobs that have no result yet done by a crew. One process keeps the results and writes the record."""
    by_key = {work.file.stem: work for work in works}
    queue = Queue(folder, {"format": FORMAT, "study": study.name, "jobs": sorted(by_key)}, patience=crew.patience)

    def do(job: QueueJob, attempt: Path) -> dict[str, Any]:  # noqa: ARG001
        with _one_thread():
            return _row(by_key[job.key], full_disk_counts=False)

    with crew.working(queue):
        waiting = [key for key, work in by_key.items() if _read(work.file) is None]
        kept = len(by_key) - len(waiting)
        queue.add([QueueJob(key, crew.needs) for key in waiting])

        def count(keys: set[str]) -> None:  # noqa: ARG001
            report(min(kept + len(queue.done()), len(works)), len(works))

        with crew.collecting(queue, do, on_done=count) as is_first:
            if not is_first:
                record: dict[str, Any] = json.loads(record_file.read_text(encoding="utf-8"))
                return record
            rows = {}
            for key, work in by_key.items():
                row = _read(work.file)
                if row is None:
                    outcome = queue.outcome(key)
                    row = outcome.result or {"result": None, "error": outcome.error, "seconds": 0.0, "commit": None}
                if row["error"] is None and not work.file.exists():
                    write_text(work.file, json.dumps(row))
                rows[key] = row
            return conclude([rows[work.file.stem] for work in works])
    raise AssertionError("a crew that collects returns above")


def _done(work: _Work) -> dict[str, Any]:
    """Return the kept result of a job, or do the job and keep its result."""
    earlier = _read(work.file)
    if earlier is not None:
        return earlier
    row = _row(work)
    if row["error"] is None:
        write_text(work.file, json.dumps(row))
    return row


def _row(work: _Work, *, full_disk_counts: bool = True) -> dict[str, Any]:
    """Do a job, and return its result or its error. A full disk is an error of the job, or of the worker."""
    begin = time.process_time()  # a job has one thread, so this is its wall time on a core of its own
    try:
        with collecting() as scales:
            result = work.run(work.job, work.size, work.folder)
        if scales:
            result = dict(result) | {"scales": scales}
        text = json.dumps(result, allow_nan=False)
        row = {"result": json.loads(text), "error": None}  # exactly as a later run will read it
    except Exception as error:
        if is_full_disk(error) and not full_disk_counts:
            raise
        row = {"result": None, "error": _one_line(error)}
    return row | {"seconds": time.process_time() - begin, "commit": git("rev-parse", "HEAD")}


def _all_done(works: Sequence[_Work], workers: int) -> Iterator[dict[str, Any]]:
    """Yield the results in the order of the jobs."""
    waiting = [work for work in works if _read(work.file) is None]
    if workers == 1 or len(waiting) < 2:
        with _one_thread():
            yield from map(_done, works)
        return
    with worker_processes(min(workers, len(waiting)), threads=1) as pool:
        futures = {work.file: pool.submit(_done, work) for work in waiting}
        for work in works:
            if work.file not in futures:
                yield _done(work)
                continue
            try:
                yield futures[work.file].result()
            except Exception as error:  # if a process is killed, all waiting jobs fail with it
                yield {"result": None, "error": _one_line(error), "seconds": 0.0, "commit": None}


def _read(path: Path) -> dict[str, Any] | None:
    """Return a kept result, or None if the file is missing or damaged, so that the job is done again."""
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    whole = isinstance(row, dict) and {"result", "error", "seconds", "commit"} <= row.keys()
    if not whole or row["error"] is not None or not isinstance(row["commit"], str | None):
        return None
    result = row["result"]
    times = isinstance(result, dict) and _are_times({"job": row["seconds"]}) and _are_times(result.get("seconds", {}))
    return row if times else None


def _are_times(times: Any) -> bool:
    """Whether a kept result has a number of seconds for each name."""
    return isinstance(times, dict) and all(
        type(value) in (int, float) and 0 <= value < float("inf") for value in times.values()
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute with one thread, as the worker processes do: other numbers of threads round sums differently."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _concluded(study: Study, results: Results, size: Size) -> tuple[Outcome, str | None]:
    """Return the outcome and an error message, if any. A claim without a verdict is a mistake in the study."""
    try:
        outcome = judged(study, results, size)
        answered = [verdict.claim for verdict in outcome.verdicts]
        if sorted(map(repr, answered)) != sorted(map(repr, study.claims)):
            raise InputError(f"{study.name} must give one verdict on each of its {len(study.claims)} claims")
    except Exception as error:
        why = f"no conclusions could be drawn from the results: {_one_line(error)}"
        return Outcome({}, [Verdict(claim, "not testable here", why) for claim in study.claims]), why
    return outcome, None


def _seconds(results: Results) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the times of each method on one core. They stand apart from the tables because they never repeat."""
    times: dict[str, dict[str, dict[str, Any]]] = {}
    for method in results.methods():
        rows = [result.get("seconds", {}) for job, result in results.runs if job.method == method]
        names = list(dict.fromkeys(name for row in rows for name in row))
        times[method] = {name: asdict(interval([row[name] for row in rows if name in row])) for name in names}
    return times


def _seed_options(seeds: Sequence[int] | None) -> str:
    return "" if seeds is None else f" --seeds {' '.join(map(str, seeds))}"


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"the folder {folder} cannot be made: {error}; choose another") from error
