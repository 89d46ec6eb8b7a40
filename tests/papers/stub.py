"""A study without training, whose functions other processes can find."""

import os
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from leanbayes.lab.recipes import Budget
from leanbayes_papers import Claim, Job, Outcome, Results, Size, Study, Verdict, cite
from leanbayes_papers.verdicts import beats, summary

BETTER = Claim(cite.SUBNETWORKS, "figure 1", "a is better than b")
OTHER = Claim(cite.OURS, "here", "another")
VALUES = {"a": 1.0, "b": 2.0}


def size(**changes: Any) -> Size:
    settings: dict[str, Any] = {
        "scaled": "everything", "minutes": 0.1, "data": ("numbers",), "needs": (), "budget": Budget(epochs=2),
        "methods": {"a": "deterministic", "b": "vi"}, "seeds": 3,
    }  # fmt: skip
    return Size(**(settings | changes))


def run(job: Job, size: Size, folder: Path | None) -> dict[str, Any]:
    """Numbers that depend on method and seed; files in the folder make it fail, die or say NaN."""
    assert folder is not None
    with (folder / "calls").open("a") as calls:
        calls.write(f"{job.method} {job.seed}\n")
    trouble = folder / f"{job.method}-{job.seed}"
    if trouble.exists():
        what = trouble.read_text()
        if what == "die":
            os._exit(9)
        if what == "nan":
            return {"metrics": {"nll": float("nan")}}
        raise RuntimeError("no luck\nat all")
    return {"metrics": {"nll": VALUES[job.method] + job.seed / 7}, "seconds": {"train": os.getpid() / 1e9}}


def conclude(results: Results, size: Size) -> Outcome:
    verdicts = [beats(results, BETTER, "nll", "a", "b"), Verdict(OTHER, "not testable here", "no data")]
    return Outcome({"all": summary(results, ["nll"])}, verdicts, {"line": Figure(figsize=(1, 1))})


def study(**changes: Any) -> Study:
    settings: dict[str, Any] = {
        "name": "stub", "title": "a stub", "claims": (BETTER, OTHER), "run": run, "conclude": conclude,
        "sizes": {"smoke": size(), "cpu": size(seeds=2), "paper": size()},
    }  # fmt: skip
    return Study(**(settings | changes))
