"""Sensitivity-guided subnetworks, figures 3, 4 and 11: LeNet 300-100 on MNIST with 1 to 95 % random weights."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from leanbayes.bayesian import Bayesian
from leanbayes.lab.data import Examples, Source, Task, load_data, rotate, shift
from leanbayes.lab.recipes import Budget
from leanbayes_papers import cite
from leanbayes_papers.figures import by_rate, lines, maps
from leanbayes_papers.study import Claim, Job, Outcome, Results, Size, Study
from leanbayes_papers.training import as_tensors, digit_images, partials, small_task, train_and_measure
from leanbayes_papers.verdicts import all_of, beats, exceeds, matches, summary, within

__all__ = ["STUDY"]

_PLAIN = {"deterministic": "deterministic", "ensemble": "ensemble", "dropout": "dropout", "vi": "vi"}
_RATES = (0.01, 0.05, 0.1, 0.2, 0.4, 0.8, 0.95)
_OOD = "ood/unseen/auroc"
_TURNED = 1000  # how many images are rotated by each angle

DECLINE = Claim(
    cite.SUBNETWORKS,
    "section 4.2, figure 4a",
    "“As r_bayes increases while keeping the number of training steps fixed, we observe a decline in test performance, "
    "particularly in Brier Score”. Tested: the 1 % network against that with the largest rate.",
)
ROTATED = Claim(
    cite.SUBNETWORKS,
    "section 4.2, figure 4b",
    "“Under covariate shift, ensembles show greater robustness”. Tested: the accuracy on rotated digits.",
)
ON_PAR = Claim(
    cite.SUBNETWORKS,
    "section 4.2, figure 4d",
    "“AUROC scores indicate that Partial 10% performs on par with Ensembles, with both models outperforming other "
    "methods”. Tested with Fashion-MNIST as unseen images.",
)
CENTRAL = Claim(
    cite.SUBNETWORKS,
    "section 4.2, figure 3",
    "“At r_bayes = 5%, uncertainty is concentrated on central connections”. Tested: more than a quarter of the first "
    "layer's random weights are at the central quarter of the pixels.",
)
FOURFOLD = Claim(
    cite.SUBNETWORKS,
    "section 4.2, figure 3",
    "From the 5 % network to standard VI “uncertainty increases approximately fourfold”. Tested: 2 to 8 times.",
)
MATCHES = Claim(
    cite.SUBNETWORKS,
    "abstract, figure 11",
    "The 1 % network has “competitive performance and uncertainty estimates compared to ensemble methods”. Tested: "
    "accuracy, Brier score, NLL, ECE and out-of-distribution AUROC, with fewer training FLOPs.",
)


@cache
def _source(data: str, folder: Path | None) -> tuple[Source, Examples]:
    """Return known and unseen images; negatives are unseen for the small digits."""
    if data == "digits":
        source = digit_images()
        return source, shift(source.test, lambda x: 1 - x)
    known, unseen = load_data(data, folder), load_data("fashion-mnist", folder)
    return known, Examples(unseen.test.inputs, unseen.test.targets, known.preparation)


@cache
def _task(
    data: str, folder: Path | None, counts: tuple[int | None, ...], angles: tuple[int, ...]
) -> tuple[Task, dict[str, Dataset[Any]]]:
    source, unseen = _source(data, folder)
    task = replace(small_task(source, counts, "lenet300"), shifted={"unseen": as_tensors(unseen, counts[2])})
    fewer = min(_TURNED, counts[2] or _TURNED)
    turned: dict[str, Dataset[Any]] = {
        f"{angle}°": as_tensors(shift(source.test, partial(rotate, degrees=angle)), fewer) for angle in angles
    }
    return task, turned


def _run(job: Job, size: Size, folder: Path | None) -> dict[str, Any]:
    task, turned = _task(job.data, folder, size.counts, tuple(size.options["angles"]))
    result, trained = train_and_measure(job, size, task, shifted=turned)
    metrics = result["metrics"]
    angles = [metrics[f"accuracy@{name}"] for name in turned]
    metrics["accuracy@rotated"] = sum(angles) / len(angles)
    return result | _first_layer(trained.predictor, metrics)


def _first_layer(predictor: Any, metrics: dict[str, float]) -> dict[str, Any]:
    """Add where the first layer's random weights lie to ``metrics``, and return their mean σ by pixel."""
    if not isinstance(predictor, Bayesian):
        return {}
    weight = next(w for w in predictor.weights().values() if w.mean.dim() == 2)
    sigma = weight.variance().sqrt().detach()
    random = torch.ones_like(sigma) if weight.index is None else torch.zeros_like(sigma)
    if weight.index is not None:
        random.view(-1)[weight.positions] = 1
    side = round(sigma.shape[1] ** 0.5)
    counts = random.sum(0).view(side, side)
    middle = slice(side // 4, side - side // 4)
    metrics["central"] = (counts[middle, middle].sum() / counts.sum().clamp_min(1)).item()
    metrics["central by area"] = counts[middle, middle].numel() / counts.numel()
    metrics["sigma"] = (sigma.sum() / random.sum().clamp_min(1)).item()
    return {"pixels": (sigma.sum(0) / len(sigma)).view(side, side).tolist()}


def _conclude(results: Results, size: Size) -> Outcome:
    rates = {
        name: float(spec.partition("rate=")[2].partition(",")[0])
        for name, spec in size.methods.items()
        if "rate=" in spec
    }
    measures = (
        "accuracy", "nll", "brier", "ece", "entropy", _OOD, "accuracy@rotated", "sigma", "central", "flops",
        "parameters", "random",
    )  # fmt: skip
    others = [name for name in ("deterministic", "dropout", "vi", "partial 1 %") if name in size.methods]
    verdicts = [
        beats(results, DECLINE, "brier", "partial 1 %", list(rates)[-1], margin=0.002),
        all_of(
            ROTATED,
            [beats(results, ROTATED, "accuracy@rotated", "ensemble", name, tests=len(others)) for name in others],
        ),
        all_of(
            ON_PAR,
            [matches(results, ON_PAR, _OOD, "partial 10 %", "ensemble", tests=7)]
            + [
                beats(results, ON_PAR, _OOD, ours, name, tests=7)
                for ours in ("partial 10 %", "ensemble")
                for name in ("deterministic", "dropout", "vi")
            ],
        ),
        exceeds(results, CENTRAL, "partial 5 %", "central", "central by area", margin=0.05),
        within(FOURFOLD, _ratio(results), 2, 8, "σ of VI over σ of the 5 % network"),
        all_of(
            MATCHES,
            [
                matches(results, MATCHES, name, "partial 1 %", "ensemble", tests=5)
                for name in ("accuracy", "brier", "nll", "ece", _OOD)
            ]
            + [beats(results, MATCHES, "flops", "partial 1 %", "ensemble", direction="low", margin=0.01)],
        ),
    ]
    return Outcome({"MNIST": summary(results, measures)}, verdicts, _figures(results, rates, size.options["angles"]))


def _ratio(results: Results) -> list[float]:
    full, part = (results.column("sigma", name) for name in ("vi", "partial 5 %"))
    return [full[key] / part[key] for key in full if key in part]


def _figures(results: Results, rates: dict[str, float], angles: Sequence[int]) -> dict[str, Any]:
    figures = {}
    if any(method in rates for method in results.methods()):
        figures["brier"] = by_rate(results, "brier", rates, "Brier score")
        figures["ood"] = by_rate(results, _OOD, rates, "AUROC, unseen images")
    shown = [
        name
        for name in ("deterministic", "ensemble", "dropout", "vi", "partial 1 %", "partial 10 %")
        if name in results.methods()
    ]
    figures["rotated"] = lines(
        {m: {a: list(results.column(f"accuracy@{a}°", m).values()) for a in angles} for m in shown},
        "degrees",
        "accuracy",
    )
    points = {
        m: {v: list(results.column("accuracy", m).values()) for v in results.column("flops", m).values()}
        for m in results.methods()
    }
    figures["flops"] = lines({m: p for m, p in points.items() if p}, "training FLOPs, plain network = 1", "accuracy")
    pixels = {name: row["pixels"] for name in results.methods() if "pixels" in (row := results.first(name) or {})}
    if pixels:
        figures["sigma"] = maps(pixels, "mean σ")
    return figures


STUDY = Study(
    "subnetworks-mnist-rates",
    "Sensitivity-guided subnetworks, figures 3, 4 and 11: MNIST by the share of random weights; rotation, unseen "
    "images",
    (DECLINE, ROTATED, ON_PAR, CENTRAL, FOURFOLD, MATCHES),
    {
        "smoke": Size(
            "200 digits of 8x8 replace MNIST, and their negatives Fashion-MNIST; 2 epochs, an ensemble of 2.",
            0.1,
            ("digits",),
            (),
            {"ensemble": "ensemble:members=2", "vi": "vi"} | partials([0.05, 0.1]),
            Budget(epochs=2, batch_size=50, optimizer="sgd", lr=0.05),
            seeds=1,
            samples=4,
            counts=(200, 50, 100),
            options={"angles": [30, 60]},
        ),
        "cpu": Size(
            "4,000 training images, and 20 epochs in all for every method (the paper: 60,000, and 50 epochs after 50 "
            "of the plain network). There is 1 mirrored draw a step (the paper: 5), and the prior scale of each "
            "tensor is fitted (the paper: N(0, 1)). The KL weight is min(1, n/k) for k random weights, and 0.01 if "
            "all weights are random (the paper: from 0.2 to 0.01).",
            10,
            ("mnist",),
            ("mnist", "fashion-mnist"),
            _PLAIN | partials(_RATES),
            Budget(epochs=20, batch_size=50, optimizer="sgd", lr=0.01, weight_decay=1e-5),
            seeds=5,
            samples=16,
            counts=(4000, 1000, 3000),
            options={"angles": [15, 30, 45, 60, 90]},
        ),
        "paper": Size(
            "Every method has 100 epochs in all. 15 % of the training images are for validation. Predictions average "
            "5 draws, as in the paper.",
            6000,
            ("mnist",),
            ("mnist", "fashion-mnist"),
            {**_PLAIN, "vi": "vi:pretrain=0,prior=normal,kl_start=0.2,kl_end=0.01,draws=5"}
            | partials(_RATES, "prior=normal,kl_start=0.2,kl_end=0.01,draws=5"),
            Budget(epochs=100, batch_size=50, optimizer="sgd", lr=0.01, weight_decay=1e-5),
            seeds=5,
            samples=5,
            options={"angles": [15, 30, 45, 60, 75, 90]},
        ),
    },
    _run,
    _conclude,
)
