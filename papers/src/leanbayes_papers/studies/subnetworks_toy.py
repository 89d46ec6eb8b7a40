"""Sensitivity-guided subnetworks, figures 2 and 14: a network learns y = x³ on [-4, 4] and predicts on [-6, 6]."""

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
from leanbayes_papers import cite
from leanbayes_papers.figures import bands
from leanbayes_papers.study import Claim, Job, Outcome, Results, Size, Study, every_job
from leanbayes_papers.training import partials, repeatable, small_task, train
from leanbayes_papers.verdicts import all_of, beats, exceeds, matches, summary

__all__ = ["STUDY"]

_END = 4.0  # the training data end at ±4
_GRID = [x / 5 for x in range(-30, 31)]
_PLAIN = {"deterministic": "deterministic", "ensemble": "ensemble", "vi": "vi"}
_CLAIM = "figures 2 and 14, section 4.1"

CAPTURES = Claim(
    cite.SUBNETWORKS,
    _CLAIM,
    "“the partial Bayesian approach is capable of capturing the uncertainty with less than half of the parameters set "
    "as Bayesian”. Tested: outside the data, 3σ of the 40 % network cover the truth more often than the plain "
    "network's.",
)
GROWS = Claim(
    cite.SUBNETWORKS,
    _CLAIM,
    "The model captures uncertainty “for ID and OOD samples”. Tested: the epistemic part of the 40 % network is larger "
    "outside the data.",
)
VARIES = Claim(
    cite.SUBNETWORKS,
    _CLAIM,
    "“varying r_bayes allows the model to capture the predictive uncertainty”. Tested: the 80 % network has more "
    "epistemic uncertainty outside the data than the 5 % network.",
)
LIKE_VI = Claim(
    cite.SUBNETWORKS,
    _CLAIM,
    "40 % random weights do what all random weights do. Tested: 3σ cover the truth outside the data as often.",
)


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
        standardised = predict(
            repeatable(trained.predictor),
            plan.standardise(x),
            likelihood=trained.likelihood,
            samples=size.samples,
            generator=torch.Generator().manual_seed(job.seed),
        )
        return plan.in_units(standardised)

    x = torch.stack([task.test[index][0] for index in range(length(task.test))]) * plan.std[0] + plan.mean[0]
    predicted, truth = ask(x), x**3
    metrics = {}
    for where, region in (("inside", x.abs() <= _END), ("outside", x.abs() > _END)):
        error = (predicted.mean - truth)[region]
        metrics[f"rmse@{where}"] = error.square().mean().sqrt().item()
        metrics[f"deviation@{where}"] = predicted.total[region].sqrt().mean().item()
        metrics[f"epistemic deviation@{where}"] = predicted.epistemic[region].clamp_min(0).sqrt().mean().item()
        metrics[f"covered@{where}"] = (error.abs() <= 3 * predicted.total[region].sqrt()).double().mean().item()
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
    figures, parts = {}, {claim: [] for claim in STUDY.claims}  # type: ignore[var-annotated]
    for data in size.data:
        curves = {}
        for method in results.methods():
            row = results.first(method, data)
            if row is not None:
                curves[method] = (row["mean"], row["deviation"])
        if curves:
            figures[f"curves-{data}"] = bands(curves, _GRID, [x**3 for x in _GRID], (-_END, _END))
        one: dict[str, Any] = {"data": data, "tests": len(size.data), "direction": "high"}
        covered, epistemic = "covered@outside", "epistemic deviation@outside"
        parts[CAPTURES].append(beats(results, CAPTURES, covered, "partial 40 %", "deterministic", margin=0.02, **one))
        parts[VARIES].append(beats(results, VARIES, epistemic, "partial 80 %", "partial 5 %", margin=0.1, **one))
        parts[LIKE_VI].append(matches(results, LIKE_VI, covered, "partial 40 %", "vi", margin=0.02, **one))
        far, near = (f"epistemic deviation@{where}" for where in ("outside", "inside"))
        parts[GROWS].append(
            exceeds(results, GROWS, "partial 40 %", far, near, margin=0.1, tests=len(size.data), data=data)
        )
    tables = {data: summary(results, measures, data) for data in size.data}
    return Outcome(tables, [all_of(claim, of_claim) for claim, of_claim in parts.items()], figures)


STUDY = Study(
    "subnetworks-toy",
    "Sensitivity-guided subnetworks, figures 2 and 14: regression on y = x³, inside and outside the training data",
    (CAPTURES, GROWS, VARIES, LIKE_VI),
    {
        "smoke": Size(
            "20 points, 10 epochs, 400 test points, three methods.",
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
            "The 30,000 points are seen 8 times. The noise is learnt for each input (the paper: squared errors).",
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
            "The noise is learnt for each input (the paper: squared errors). The paper speaks of 20 points and of "
            "30,000; this study has both.",
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
