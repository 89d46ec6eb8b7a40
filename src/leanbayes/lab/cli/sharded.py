"""Predictions of inputs by the million: each shard of the inputs is a job of a queue, and becomes a folder.

    shards/<shard>/predictions.csv      the predictions of a shard, and the maps of segmented images beside it
    shards/<shard>/outcome.json         how many inputs it had, who predicted it, and how long it took
    manifest.json                       all shards with their sums, written when the last one is done

The noise of a shard depends on the seed and on the shard, and on nothing else. So the predictions do not depend on how
many workers there are, nor on which of them does which shard, nor on kills.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leanbayes._files import write_bytes, write_text
from leanbayes.errors import FileError, ForeignFile, InputError, LeanBayesError
from leanbayes.lab.cli.predicting import SavedModel, predict_cases
from leanbayes.lab.jobs import Crew, Job, Queue
from leanbayes.lab.shards import cut, read_part

__all__ = ["Throughput", "predict_shards"]

_FORMAT = 1


@dataclass(frozen=True)
class Throughput:
    """How far a prediction is.

    Args:
        done: how many inputs are predicted, those of earlier runs included.
        total: how many there are.
        rate: how many inputs a second all workers together have predicted since this process began.
    """

    done: int
    total: int
    rate: float

    def __str__(self) -> str:
        left = f", {_duration((self.total - self.done) / self.rate)} left" if self.rate else ""
        return f"{self.done:,} of {self.total:,} inputs, {self.rate:,.0f} inputs/s{left}"


def predict_shards(
    model: SavedModel,
    inputs: Path,
    folder: Path,
    crew: Crew,
    *,
    seed: int,
    size: int,
    header: Mapping[str, Any],
    watch: Callable[[Throughput], None],
) -> dict[str, Any]:
    """Predict all inputs at a path shard by shard, and write a manifest of the shards.

    Args:
        model: the model.
        inputs: where the inputs are.
        folder: where the predictions go.
        crew: the workers.
        seed: the seed of all weight draws.
        size: how many inputs a shard has at most.
        header: what else the manifest says.
        watch: is called whenever shards are done.
    """
    identity = {
        "format": _FORMAT,
        "inputs": str(inputs),
        "model_sha256": model.digest,
        "samples": model.samples,
        "tolerance": model.tolerance,
        "batch_size": model.batch_size,
        "seed": seed,
        "shard_size": size,
    }
    shards, manifest = folder / "shards", folder / "manifest.json"
    _check_folder(folder, shards, manifest, identity)
    queue = Queue(folder / "queue", identity, patience=crew.patience, done=shards)

    def do(job: Job, attempt: Path) -> dict[str, Any]:
        cases = read_part(inputs, job.payload, model.preparation)
        predicted = predict_cases(model, cases, attempt, _seed_of(seed, job.key))
        write_bytes(attempt / "predictions.csv", predicted.table.encode())
        return {
            "inputs": len(cases),
            "predictions_sha256": hashlib.sha256(predicted.table.encode()).hexdigest(),
            "maps": predicted.maps,
            "without_dicom_seg": predicted.without_segments,
            "run": identity,
        }

    with crew.working(queue):
        with queue.alone("plan"):
            if not queue.jobs() and queue.is_current():
                parts = cut(inputs, model.preparation, size)
                queue.add([Job(_name(number), crew.needs, part) for number, part in enumerate(parts)])
            if not crew.is_worker:
                queue.forget_failures()
        jobs = queue.jobs()
        report = _Report(queue, {key: int(job.payload["count"]) for key, job in jobs.items()}, watch)
        with crew.collecting(queue, do, on_done=report) as is_first:
            if not is_first:
                record = _read(manifest)
            else:
                record = _collect(queue, shards, jobs, identity, header)
                write_text(manifest, json.dumps(record, indent=1))
    return record | {"inputs_per_second": report.rate(), "manifest": str(manifest)}


def _collect(
    queue: Queue, shards: Path, jobs: Mapping[str, Job], identity: Mapping[str, Any], header: Mapping[str, Any]
) -> dict[str, Any]:
    rows, failed, workers = [], [], set()
    for key in sorted(jobs):
        outcome = queue.outcome(key)
        workers.add(outcome.worker)
        if outcome.result is None:
            failed.append({"shard": key, "error": outcome.error})
            continue
        if outcome.result.get("run") != identity:
            raise FileError(f"{shards / key} belongs to another run; give another folder")
        row = {name: outcome.result[name] for name in ("inputs", "predictions_sha256", "without_dicom_seg")}
        seconds = {"seconds": outcome.seconds, "attempts": outcome.attempts}
        rows.append({"shard": key, "path": f"shards/{key}/predictions.csv", **row, **seconds})
    if failed:
        raise LeanBayesError(
            f"{len(failed)} of {len(jobs)} shards failed, the others are done; the first is {failed[0]['shard']}: "
            f"{failed[0]['error']}; mend this, and run the same command again"
        )
    total = sum(row["inputs"] for row in rows)
    return {
        "kind": "sharded predictions",
        **identity,
        **header,
        "count": total,
        "workers": len(workers),
        "shards": rows,
    }


class _Report:
    """Counts the inputs of the shards that are done."""

    def __init__(self, queue: Queue, counts: Mapping[str, int], watch: Callable[[Throughput], None]) -> None:
        self.counts, self.watch = counts, watch
        self.done = sum(counts[key] for key in queue.done() & counts.keys())
        self.before, self.began, self.known = self.done, time.monotonic(), queue.done()

    def __call__(self, keys: set[str]) -> None:
        self.done += sum(self.counts.get(key, 0) for key in keys - self.known)
        self.known |= keys
        self.watch(Throughput(self.done, sum(self.counts.values()), self.rate()))

    def rate(self) -> float:
        return (self.done - self.before) / max(time.monotonic() - self.began, 1e-9)


def _check_folder(folder: Path, shards: Path, manifest: Path, identity: Mapping[str, Any]) -> None:
    """Refuse a folder that holds something else."""
    if manifest.exists():
        record = _read(manifest)
        differ = [name for name in identity if record.get(name) != identity[name]]
        if differ:
            old, new = record.get(differ[0]), identity[differ[0]]
            raise InputError(
                f"{folder} holds the predictions of another run: {differ[0]} was {str(old)[:40]!r} and is now "
                f"{str(new)[:40]!r}; give another folder"
            )
    elif not (folder / "queue").exists() and shards.exists() and any(shards.iterdir()):
        raise FileError(f"{shards} holds shards of a run that nobody can continue; give another folder, or remove it")


def _read(manifest: Path) -> dict[str, Any]:
    try:
        record = json.loads(manifest.read_text(encoding="utf-8"))
        if record["kind"] != "sharded predictions":
            raise KeyError("kind")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ForeignFile(f"{manifest} is no manifest of leanbayes predict; give another folder") from error
    return dict(record)


def _name(number: int) -> str:
    return f"shard-{number:06d}"


def _seed_of(seed: int, key: str) -> int:
    digest = hashlib.sha256(f"{seed}/{key}".encode()).digest()
    return int.from_bytes(digest[:8], "little") % 2**63


def _duration(seconds: float) -> str:
    """Return a duration in words.

    >>> _duration(75), _duration(7300)
    ('1 min 15 s', '2 h 1 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
