"""001, figures 2 and 14: a network that knows y = x³ on [-4, 4] is asked about [-6, 6]."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leanbayes.lab.data import Source, length, load_data
from leanbayes.lab.models import mlp
from leanbayes.lab.recipes import Budget
from leanbayes.prediction import predict
from leanbayes_papers.base import Claim, Experiment, Job, Outcome, Results, Size, every_job
from leanbayes_papers.figures import bands
from leanbayes_papers.inside import exceeds
from leanbayes_papers.judge import all_of, beats, matches, summary
from leanbayes_papers.training import partials, repeatable, small_task, train

__all__ = ["EXPERIMENT"]

_END = 4.0  # of the training data
_GRID = [x / 5 for x in range(-30, 31)]
_PLAIN = {"deterministic": "deterministic", "ensemble": "ensemble", "vi": "vi"}
_CLAIM = "figures 2 and 14, section 4.1"

CAPTURES = Claim(
    "001",
    _CLAIM,
    "“the partial Bayesian approach is capable of capturing the uncertainty with less than half of the parameters set "
    "as Bayesian”: outside the data 3σ cover the truth more often than the plain network's",
)
GROWS = Claim(
    "001",
    _CLAIM,
    "the model captures uncertainty “for ID and OOD samples”: the epistemic part is larger outside the data",
)
VARIES = Claim(
    "001", _CLAIM, "“varying r_bayes allows the model to capture the predictive uncertainty”: more at 80 % than at 5 %"
)
LIKE_VI = Claim("001", _CLAIM, "40 % of the weights do what all do: 3σ cover the truth outside the data as often")


@cache
def _source(data: str, folder: Path | None, seed: int) -> Source:
    return load_data(data, folder, seed=seed)


def _jobs(size: Size, seeds: Sequence[int]) -> list[Job]:
    return [replace(job, epochs=size.options["epochs"][job.data]) for job in every_job(size, seeds)]


def _run(job: Job, size: Size, folder: Path | None) -> dict[str, Any]:
    source = _source(job.data, folder, job.seed)
    plan = source.preparation
    task = small_task(source, size.counts, partial(mlp, 1, plan.outputs, width=(100,)))
    trained, _ = train(job, size, task)

    def ask(x: Tensor) -> Any:
        found = predict(
            repeatable(trained.predictor),
            plan.standardise(x),
            likelihood=trained.likelihood,
            samples=size.samples,
            generator=torch.Generator().manual_seed(job.seed),
        )
        return plan.in_units(found)

    x = torch.stack([task.test[place][0] for place in range(length(task.test))]) * plan.std[0] + plan.mean[0]
    found, truth = ask(x), x**3
    metrics = {}
    for where, some in (("inside", x.abs() <= _END), ("outside", x.abs() > _END)):
        apart = (found.mean - truth)[some]
        metrics[f"rmse@{where}"] = apart.square().mean().sqrt().item()
        metrics[f"deviation@{where}"] = found.total[some].sqrt().mean().item()
        metrics[f"epistemic deviation@{where}"] = found.epistemic[some].clamp_min(0).sqrt().mean().item()
        metrics[f"covered@{where}"] = (apart.abs() <= 3 * found.total[some].sqrt()).double().mean().item()
    curve = ask(torch.tensor(_GRID).view(-1, 1))
    return {
        "metrics": metrics,
        "seconds": {"train": trained.seconds},
        "mean": curve.mean[:, 0].tolist(),
        "deviation": curve.total[:, 0].sqrt().tolist(),
    }


def _conclude(results: Results, size: Size) -> Outcome:
    measures = [
        f"{name}@{at}"
        for name in ("rmse", "deviation", "epistemic deviation", "covered")
        for at in ("inside", "outside")
    ]
    figures, parts = {}, {claim: [] for claim in EXPERIMENT.claims}  # type: ignore[var-annotated]
    for data in size.data:
        curves = {}
        for method in results.methods():
            row = results.first(method, data)
            if row is not None:
                curves[method] = (row["mean"], row["deviation"])
        if curves:
            figures[f"curves-{data}"] = bands(curves, _GRID, [x**3 for x in _GRID], (-_END, _END))
        one: dict[str, Any] = {"data": data, "tests": len(size.data), "direction": "high"}
        covered, known = "covered@outside", "epistemic deviation@outside"
        parts[CAPTURES].append(beats(results, CAPTURES, covered, "partial 40 %", "deterministic", margin=0.02, **one))
        parts[VARIES].append(beats(results, VARIES, known, "partial 80 %", "partial 5 %", margin=0.1, **one))
        parts[LIKE_VI].append(matches(results, LIKE_VI, covered, "partial 40 %", "vi", margin=0.02, **one))
        far, near = (f"epistemic deviation@{where}" for where in ("outside", "inside"))
        parts[GROWS].append(
            exceeds(results, GROWS, "partial 40 %", far, near, margin=0.1, tests=len(size.data), data=data)
        )
    tables = {data: summary(results, measures, data) for data in size.data}
    return Outcome(tables, [all_of(claim, some) for claim, some in parts.items()], figures)


EXPERIMENT = Experiment(
    "subnetworks-toy",
    "001, figures 2 and 14: regression on y = x³, inside and outside the training data",
    (CAPTURES, GROWS, VARIES, LIKE_VI),
    {
        "smoke": Size(
            "20 points, 10 epochs, 400 test points, three methods",
            0.1,
            ("cubic",),
            (),
            {"deterministic": "deterministic", **partials([0.4]), "vi": "vi"},
            Budget(batch_size=20, lr=1e-2),
            seeds=2,
            samples=4,
            counts=(None, None, 400),
            options={"epochs": {"cubic": 10}},
        ),
        "cpu": Size(
            "30,000 points are seen 8 times; noise is learnt for each input, 001 has squared errors",
            11,
            ("cubic", "cubic-30000"),
            (),
            _PLAIN | partials([0.05, 0.1, 0.2, 0.4, 0.8]),
            Budget(batch_size=100, lr=5e-3, schedule="cosine"),
            seeds=6,
            samples=64,
            counts=(None, None, 4000),
            options={"epochs": {"cubic": 1500, "cubic-30000": 8}},
        ),
        "paper": Size(
            "noise is learnt for each input, 001 has squared errors; 001 speaks of 20 points and of 30,000: both",
            120,
            ("cubic", "cubic-30000"),
            (),
            _PLAIN | partials([0.05, 0.1, 0.2, 0.4, 0.6, 0.8], "draws=5,prior=normal,kl_start=0.2,kl_end=0.01"),
            Budget(batch_size=100, lr=5e-3, schedule="cosine"),
            seeds=5,
            samples=100,
            options={"epochs": {"cubic": 5000, "cubic-30000": 50}},
        ),
    },
    _run,
    _conclude,
    _jobs,
)
