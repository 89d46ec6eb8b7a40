"""000, table 1 and figure 4 on BreastMNIST: a ResNet with 1 to 80 % random weights, and with less than 1 %."""

from functools import cache
from pathlib import Path
from typing import Any

from leanbayes.lab.data import Task, load_data
from leanbayes.lab.recipes import Budget
from leanbayes_papers.base import Claim, Experiment, Job, Outcome, Results, Size
from leanbayes_papers.figures import by_rate
from leanbayes_papers.judge import all_of, beats, matches, summary
from leanbayes_papers.training import digit_images, measured, partials, rates_of, small_task

__all__ = ["EXPERIMENT"]

_PLAIN = {"deterministic": "deterministic", "ensemble": "ensemble", "vi": "vi"}
_RATES = (0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.4, 0.8)
_SMALLEST, _LARGEST = "partial 0.1 %", "partial 80 %"

MATCHES = Claim(
    "000",
    "table 1",
    "“Our partial 1%-model matches the performance of a 5-member ensemble with 30% fewer FLOPs” (accuracy, Brier)",
)
ENTROPY = Claim(
    "000",
    "section 3.2",
    "“the sparse model performs competitively, particularly in entropy”: lower than the ensemble's",
)
DECLINE = Claim(
    "000",
    "section 3.2, figure 4",
    "“With increasing r_bayes and a fixed computational budget, there's a decline in test performance metrics”: 80 % "
    "is worse than 1 % (accuracy, Brier)",
)
FULL = Claim("000", "section 3.2", "“The fully Bayesian model performs poorly”: 1 % is better (accuracy, Brier)")
BELOW = Claim("000", "section 4", "left open: less than 1 %. 0.1 % matches 1 % (accuracy, Brier, NLL)")


@cache
def _task(data: str, folder: Path | None, counts: tuple[int | None, ...], model: str) -> Task:
    source = digit_images() if data == "digits" else load_data(data, folder)
    return small_task(source, counts, model)


def _run(job: Job, size: Size, folder: Path | None) -> dict[str, Any]:
    return measured(job, size, _task(job.data, folder, size.counts, size.options["model"]))[0]


def _conclude(results: Results, size: Size) -> Outcome:
    measures = ("accuracy", "auc", "brier", "nll", "ece", "entropy", "flops", "parameters", "random")
    rates = rates_of(size)
    both = ("accuracy", "brier")
    verdicts = [
        all_of(
            MATCHES,
            [matches(results, MATCHES, m, "partial 1 %", "ensemble", tests=2, margin=0.02) for m in both]
            + [beats(results, MATCHES, "flops", "partial 1 %", "ensemble", direction="low", margin=0.01)],
        ),
        beats(results, ENTROPY, "entropy", "partial 1 %", "ensemble", direction="low"),
        all_of(DECLINE, [beats(results, DECLINE, m, "partial 1 %", _LARGEST, tests=2) for m in both]),
        all_of(FULL, [beats(results, FULL, m, "partial 1 %", "vi", tests=2) for m in both]),
        all_of(
            BELOW, [matches(results, BELOW, m, _SMALLEST, "partial 1 %", tests=3, margin=0.02) for m in (*both, "nll")]
        ),
    ]
    known = {name: rate for name, rate in rates.items() if name in results.methods()}
    drawn = {"accuracy": "accuracy", "brier": "Brier score", "entropy": "entropy, nats"}
    figures = {measure: by_rate(results, measure, known, label) for measure, label in drawn.items()} if known else {}
    return Outcome({name: summary(results, measures, name) for name in size.data}, verdicts, figures)


EXPERIMENT = Experiment(
    "abboud-breast",
    "000, table 1 and figure 4 on BreastMNIST: rates of 1 to 80 % and below 1 %",
    (MATCHES, ENTROPY, DECLINE, FULL, BELOW),
    {
        "smoke": Size(
            "8x8 digits, 120 images, 2 epochs, a small CNN, an ensemble of 2",
            0.1,
            ("digits",),
            (),
            {"ensemble": "ensemble:members=2"} | partials([0.01, 0.8]),
            Budget(epochs=2, batch_size=40, lr=1e-2),
            seeds=1,
            samples=4,
            counts=(120, 40, 100),
            options={"model": "small_cnn"},
        ),
        "cpu": Size(
            "BreastMNIST (546 images of 28x28) for ChestMNIST (78,468 of 224x224), 001's small ResNet for ResNet-18, "
            "40 epochs in all for every method, 1 mirrored draw a step (000: 5), no class weights, prior scales "
            "fitted",
            8,
            ("breastmnist",),
            ("breastmnist",),
            _PLAIN | partials(_RATES),
            Budget(epochs=40, batch_size=50, optimizer="sgd", lr=0.01, weight_decay=1e-5),
            seeds=5,
            samples=16,
            options={"model": "small_resnet"},
        ),
        "paper": Size(
            "BreastMNIST beside ChestMNIST; no class weights; every method has 100 epochs in all",
            20_000,
            ("breastmnist", "chestmnist_224"),
            ("breastmnist", "chestmnist_224"),
            {**_PLAIN, "vi": "vi:pretrain=0,prior=normal,draws=5,kl_end=0.01"}
            | partials(_RATES, "prior=normal,draws=5,kl_end=0.01"),
            Budget(epochs=100, batch_size=50, optimizer="sgd", lr=0.01, weight_decay=1e-5),
            seeds=5,
            samples=5,
            options={"model": "resnet18"},
        ),
    },
    _run,
    _conclude,
)
