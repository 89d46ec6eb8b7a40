"""UCI regression with the standard splits, a common benchmark, for every method that predicts real numbers."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from leanbayes.lab.data import Source, length, load_data
from leanbayes.lab.data.source import from_arrays
from leanbayes.lab.models import mlp
from leanbayes.lab.recipes import Budget
from leanbayes.lab.recipes.budget import USUAL_BATCH
from leanbayes_papers import cite
from leanbayes_papers.study import Claim, Job, Outcome, Results, Size, Study, every_job
from leanbayes_papers.training import small_task, train_and_measure
from leanbayes_papers.verdicts import all_of, matches, summary

__all__ = ["STUDY"]

_METHODS = {
    "deterministic": "deterministic",
    "ensemble": "ensemble",
    "dropout": "dropout:rate=0.05",
    "swag": "swag:lr=0.001",  # with 0.01 a Gaussian likelihood of little noise diverges
    "vi": "vi",
    "vi by moments": "vi:predict=moments",
    "partial 1 %": "partial",
    "partial 10 %": "partial:rate=0.1",
    "partial 10 % by moments": "partial:rate=0.1,predict=moments",
    "last layer": "layers",
    "vdp": "vdp",
    "radial": "radial",
    "ssvi": "ssvi:density=0.3,propagate=local",
    "rigl": "rigl:density=0.3",
    "variational dropout": "variational_dropout:kl_end=0.1",
}
_SETS = ("boston", "concrete", "energy", "wine", "yacht")
_ALL = (*_SETS, "kin8nm", "naval", "power", "protein")
_MADE_UP = "made-up"

PARTIAL = Claim(
    cite.OURS,
    "UCI regression",
    "The 10 % network matches the ensemble of five (RMSE, NLL).",
)
ONE_PASS = Claim(cite.OURS, "UCI regression", "One pass of moments predicts as well as draws (RMSE, NLL).")
BEST_ALIKE = Claim(
    cite.OURS, "UCI regression", "Variational inference over 10 % of the weights matches that over all weights (NLL)."
)


@cache
def _source(data: str, folder: Path | None, split: int) -> Source:
    if data != _MADE_UP:
        return load_data(f"uci-{data}", folder, seed=split)
    random = np.random.default_rng(split)
    x = random.normal(size=(160, 4))
    y = x[:, 0] * x[:, 1] + np.sin(2 * x[:, 2]) + 0.2 * random.normal(size=160)
    return from_arrays(Path(_MADE_UP), {"train": (x, y)}, "regression", seed=split)


def _jobs(size: Size, seeds: Sequence[int]) -> list[Job]:
    """Return the jobs; a seed is also the number of a split, of which protein has five."""
    return [job for job in every_job(size, seeds) if job.data != "protein" or job.seed < 5]


def _run(job: Job, size: Size, folder: Path | None) -> dict[str, Any]:
    source = _source(job.data, folder, job.seed)
    plan = source.preparation
    task = small_task(source, size.counts, partial(mlp, len(plan.mean), plan.outputs, width=(50,)))
    epochs = max(2, round(size.options["steps"] * (size.budget.batch_size or USUAL_BATCH) / length(task.train)))
    result, _ = train_and_measure(replace(job, epochs=epochs), size, task)
    scale = plan.target_std[0]
    metrics = result["metrics"]
    metrics["rmse in units"] = metrics["rmse"] * scale
    metrics["nll in units"] = metrics["nll"] + math.log(scale)
    return result


def _conclude(results: Results, size: Size) -> Outcome:
    measures = ("rmse in units", "nll in units", "rmse", "nll", "crps", "coverage_error")
    tables = {data: summary(results, measures, data) for data in size.data}
    pairs = [("vi by moments", "vi"), ("partial 10 % by moments", "partial 10 %")]
    both = ("rmse", "nll")
    return Outcome(
        tables,
        [
            all_of(PARTIAL, [matches(results, PARTIAL, m, "partial 10 %", "ensemble", tests=2) for m in both]),
            all_of(ONE_PASS, [matches(results, ONE_PASS, m, a, b, tests=4) for a, b in pairs for m in both]),
            matches(results, BEST_ALIKE, "nll", "partial 10 %", "vi"),
        ],
    )


STUDY = Study(
    "uci",
    "Beyond the papers: UCI regression with the standard splits, RMSE and NLL of every method",
    (PARTIAL, ONE_PASS, BEST_ALIKE),
    {
        "smoke": Size(
            "A made-up table of 160 rows, four methods, 20 steps.",
            0.1,
            (_MADE_UP,),
            (),
            {name: _METHODS[name] for name in ("deterministic", "partial 10 %", "partial 10 % by moments", "ssvi")},
            Budget(batch_size=32, lr=1e-2),
            seeds=2,
            samples=4,
            options={"steps": 20},
        ),
        "cpu": Size(
            "Five of the nine tables and 3 of the 20 splits. Every table has as many steps.",
            9,
            _SETS,
            tuple(f"uci-{name}" for name in _SETS),
            _METHODS,
            Budget(batch_size=32, lr=5e-3, schedule="cosine"),
            seeds=3,
            samples=32,
            options={"steps": 700},
        ),
        "paper": Size(
            "Nothing is scaled down: all tables with their 20 splits (protein has 5), one layer of 50 units.",
            600,
            _ALL,
            tuple(f"uci-{name}" for name in _ALL),
            _METHODS,
            Budget(batch_size=32, lr=5e-3, schedule="cosine"),
            seeds=20,
            samples=100,
            options={"steps": 4000},
        ),
    },
    _run,
    _conclude,
    _jobs,
)
