"""Abboud et al. 2024, table 1 and figure 4, on BreastMNIST: a ResNet with 0.1 to 80 % random weights."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from leanbayes.lab.data import Task, load_data
from leanbayes.lab.recipes import Budget
from leanbayes_papers import cite
from leanbayes_papers.figures import by_rate
from leanbayes_papers.study import Claim, Job, Outcome, Results, Size, Study, Verdict
from leanbayes_papers.training import digit_images, partials, rates_of, small_task, train_and_measure
from leanbayes_papers.verdicts import all_of, beats, matches, summary

__all__ = ["STUDY"]

_PLAIN = {"deterministic": "deterministic", "ensemble": "ensemble", "vi": "vi"}
_RATES = (0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.4, 0.8)
_SMALLEST, _LARGEST = "partial 0.1 %", "partial 80 %"

MATCHES = Claim(
    cite.ABBOUD,
    "table 1",
    "“Our partial 1%-model matches the performance of a 5-member ensemble with 30% fewer FLOPs”. Tested: accuracy, "
    "Brier score, and fewer FLOPs.",
)
ENTROPY = Claim(
    cite.ABBOUD,
    "section 3.2",
    "“the sparse model performs competitively, particularly in entropy”. Tested: the 1 % network has a lower entropy "
    "than the ensemble.",
)
DECLINE = Claim(
    cite.ABBOUD,
    "section 3.2, figure 4",
    "“With increasing r_bayes and a fixed computational budget, there's a decline in test performance metrics”. "
    "Tested: the 80 % network is worse than the 1 % network in accuracy and Brier score.",
)
FULL = Claim(
    cite.ABBOUD,
    "section 3.2",
    "“The fully Bayesian model performs poorly”. Tested: the 1 % network is better in accuracy and Brier score.",
)
BELOW = Claim(
    cite.ABBOUD,
    "section 4",
    "The paper leaves open what happens below 1 %. Tested: the 0.1 % network matches the 1 % network in accuracy, "
    "Brier score and NLL.",
)


@cache
def _task(data: str, folder: Path | None, counts: tuple[int | None, ...], model: str) -> Task:
    source = digit_images() if data == "digits" else load_data(data, folder)
    return small_task(source, counts, model)


def _run(job: Job, size: Size, folder: Path | None) -> dict[str, Any]:
    return train_and_measure(job, size, _task(job.data, folder, size.counts, size.options["model"]))[0]


def _conclude(results: Results, size: Size) -> Outcome:
    measures = ("accuracy", "auc", "brier", "nll", "ece", "entropy", "flops", "parameters", "random")
    rates = rates_of(size)
    both = ("accuracy", "brier")
    sets = results.data()
    tests = 2 * max(1, len(sets))

    def each(claim: Claim, judge: Callable[[str | None], list[Verdict]]) -> Verdict:
        """Judge every data set by itself: an average over two of them would have no interval."""
        return all_of(claim, [part for name in sets or (None,) for part in judge(name)])

    verdicts = [
        each(
            MATCHES,
            lambda data: [
                *(
                    matches(results, MATCHES, m, "partial 1 %", "ensemble", tests=tests, margin=0.02, data=data)
                    for m in both
                ),
                beats(results, MATCHES, "flops", "partial 1 %", "ensemble", direction="low", margin=0.01, data=data),
            ],
        ),
        each(
            ENTROPY,
            lambda data: [
                beats(
                    results, ENTROPY, "entropy", "partial 1 %", "ensemble", direction="low", tests=tests // 2, data=data
                )
            ],
        ),
        each(
            DECLINE,
            lambda data: [beats(results, DECLINE, m, "partial 1 %", _LARGEST, tests=tests, data=data) for m in both],
        ),
        each(FULL, lambda data: [beats(results, FULL, m, "partial 1 %", "vi", tests=tests, data=data) for m in both]),
        each(
            BELOW,
            lambda data: [
                matches(results, BELOW, m, _SMALLEST, "partial 1 %", tests=tests * 3 // 2, margin=0.02, data=data)
                for m in (*both, "nll")
            ],
        ),
    ]
    finished = {name: rate for name, rate in rates.items() if name in results.methods()}
    labels = {"accuracy": "accuracy", "brier": "Brier score", "entropy": "entropy, nats"} if finished else {}
    figures = {measure: by_rate(results, measure, finished, label) for measure, label in labels.items()}
    return Outcome({name: summary(results, measures, name) for name in size.data}, verdicts, figures)


STUDY = Study(
    "abboud-breast",
    "Abboud et al. 2024, table 1 and figure 4, on BreastMNIST: rates of 0.1 to 80 %",
    (MATCHES, ENTROPY, DECLINE, FULL, BELOW),
    {
        "smoke": Size(
            "120 digits of 8x8, 2 epochs, a small CNN, an ensemble of 2.",
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
            "BreastMNIST (546 images of 28x28) replaces ChestMNIST (78,468 of 224x224), and the small ResNet of "
            "sensitivity-guided subnetworks replaces ResNet-18. Every method has 40 epochs in all and 1 mirrored draw "
            "a step (the paper: 5). There are no class weights, and the scales of the prior are fitted.",
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
            "BreastMNIST is added to ChestMNIST. There are no class weights. Every method has 100 epochs in all.",
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
