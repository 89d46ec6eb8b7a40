"""Batch prediction by several workers that are killed at random moments."""

import contextlib
import csv
import hashlib
import io
import json
import random
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from leanbayes import Bayesian, save
from leanbayes.lab.cli import main
from leanbayes.lab.data import Preparation
from leanbayes.lab.jobs import EXECUTORS
from leanbayes.lab.models import model_named
from leanbayes.lab.shards import FORMS
from tests.workers.crowd import Crowd

__all__ = ["efficiency", "make", "predict_with_kills"]


def make(folder: Path, number: int) -> None:
    """A network that nobody has trained, and inputs for it. All that a worker imports is imported here."""
    import leanbayes.lab.cli.saved
    import leanbayes.lab.cli.sharded
    import leanbayes.lab.compare  # noqa: F401

    assert len(EXECUTORS) + len(FORMS) > 2
    with contextlib.redirect_stdout(io.StringIO()):
        main(["predict", "--help"])
    plan = Preparation("classes", (0.0,) * 3, (1.0,) * 3, ("no", "yes"), features=("a", "b", "c"))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        bnn = Bayesian(model_named("mlp", **plan.shape))
    save(bnn, folder / "model.lb", about={"model": "mlp", "preparation": plan.to_json()})
    np.savez(folder / "inputs.npz", x=np.random.default_rng(0).normal(size=(number, 3)).astype(np.float32))


def _predict(folder: Path, out: str, size: int) -> None:
    words = [
        "predict",
        str(folder / "model.lb"),
        str(folder / "inputs.npz"),
        "--out",
        str(folder / out),
        "--samples",
        "2",
    ]
    words += ["--batch-size", "256", "--shard-size", str(size), "--executor", "shared", "--quiet", "--json"]
    with contextlib.redirect_stdout(io.StringIO()):
        code = main(words)
    assert code == 0, code


def _check(folder: Path, out: str, number: int) -> str:
    """Raise unless every input was predicted once; return the digest of all rows."""
    manifest = json.loads((folder / out / "manifest.json").read_text())
    assert manifest["count"] == number
    names, everything = [], hashlib.sha256()
    for row in manifest["shards"]:
        text = (folder / out / row["path"]).read_bytes()
        assert hashlib.sha256(text).hexdigest() == row["predictions_sha256"]
        names += [line["name"] for line in csv.DictReader(io.StringIO(text.decode(), newline=""))]
        everything.update(text)
    assert names == [str(index) for index in range(number)], "an input is lost, or is there twice"
    assert sorted(path.name for path in (folder / out).iterdir()) == ["manifest.json", "shards"]
    return everything.hexdigest()


def _crowd(folder: Path, out: str, size: int, workers: int) -> tuple[Crowd, float]:
    crowd = Crowd(lambda seat: _predict(folder, out, size), workers)
    for seat in range(workers):
        crowd.start(seat)
    return crowd, time.monotonic()


def predict_with_kills(folder: Path, number: int, workers: int, size: int, kills: int, seed: int) -> dict[str, Any]:
    """Predict with one worker, then with several that are killed; nothing may be lost, and nothing be there twice."""
    folder.mkdir(parents=True, exist_ok=True)
    make(folder, number)
    crowd, began = _crowd(folder, "alone", size, 1)
    crowd.wait()
    alone = time.monotonic() - began
    assert not crowd.ended_badly
    chance = random.Random(seed)
    crowd, began = _crowd(folder, "together", size, workers)
    targets = [turn % workers for turn in range(kills)]
    chance.shuffle(targets)
    for seat in targets:
        time.sleep(chance.uniform(0.3, 1.0) * alone / kills / 2)
        crowd.kill(seat)
    crowd.wait()
    together = time.monotonic() - began
    assert not crowd.ended_badly, crowd.ended_badly
    assert len(crowd.killed) == workers, "all was done before each worker was killed"
    same = _check(folder, "alone", number) == _check(folder, "together", number)
    assert same, "the predictions depend on the kills"
    rows = json.loads((folder / "together" / "manifest.json").read_text())["shards"]
    return {
        "inputs": number,
        "shards": len(rows),
        "workers": workers,
        "kills": sum(crowd.killed.values()),
        "shards_done_again": sum(row["attempts"] > 1 for row in rows),
        "seconds_of_one_worker": round(alone, 1),
        "seconds_with_kills": round(together, 1),
        "identical": same,
    }


def efficiency(folder: Path, number: int, size: int, counts: tuple[int, ...] = (1, 2, 4)) -> dict[str, Any]:
    """The speed of several workers against one. They take turns, and the best of three counts.

    ``cores_used`` is the processor time of the best run divided by its wall time. If one worker has less than about
    one core, others disturbed the machine, and the ratios say nothing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    make(folder, number)
    best: dict[int, tuple[float, float]] = {}
    for turn in range(3):
        for count in counts:
            before = _processor_time()
            crowd, began = _crowd(folder, f"by-{count}-{turn}", size, count)
            crowd.wait()
            assert not crowd.ended_badly
            seconds = time.monotonic() - began
            best[count] = min(best.get(count, (float("inf"), 0.0)), (seconds, _processor_time() - before))
    alone = best[counts[0]][0]
    return {
        "inputs": number,
        "inputs_per_second": {count: round(number / seconds) for count, (seconds, _) in best.items()},
        "speedup": {count: round(alone / seconds, 2) for count, (seconds, _) in best.items()},
        "cores_used": {count: round(used / seconds, 2) for count, (seconds, used) in best.items()},
    }


def _processor_time() -> float:
    """The processor time of all workers that have ended."""
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
