"""Sensitivity-guided subnetworks, figure 5: CIFAR-10 under the 19 corruptions of CIFAR-10-C at growing severity."""

from functools import cache, partial
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from leanbayes.lab.data import CORRUPTIONS, Examples, Task, corrupt, load_data, shift
from leanbayes.lab.recipes import Budget
from leanbayes_papers import cite
from leanbayes_papers.figures import lines
from leanbayes_papers.study import Claim, Job, Outcome, Results, Size, Study
from leanbayes_papers.training import as_tensors, digit_images, partials, small_task, train_and_measure
from leanbayes_papers.verdicts import all_of, beats, exceeds, summary

__all__ = ["STUDY"]

_PLAIN = {"deterministic": "deterministic", "ensemble": "ensemble", "dropout": "dropout", "vi": "vi"}
_OURS = "partial 5 %"
_MEASURES = ("accuracy", "nll", "brier", "ece", "entropy")

ROBUST = Claim(
    cite.SUBNETWORKS,
    "section 4.3, figure 5",
    "“PBN exhibits strong robustness to data corruptions, with performance degrading less than that of … other "
    "baseline methods”. Tested: the 5 % network loses less accuracy from clean images to the worst severity than the "
    "ensemble and dropout.",
)
CALIBRATED = Claim(
    cite.SUBNETWORKS,
    "section 4.3, figure 5",
    "The partly random network is calibrated under shift. Tested: at the worst severity the 5 % network has a lower "
    "NLL and ECE than the plain network.",
)
ENTROPY = Claim(
    cite.SUBNETWORKS,
    "section 4.3, figure 5",
    "The entropy of the partly random network is higher on corrupted images than on clean ones.",
)


@cache
def _task(
    data: str,
    folder: Path | None,
    counts: tuple[int | None, ...],
    model: str,
    corruptions: tuple[str, ...],
    severities: tuple[int, ...],
    images: int,
) -> tuple[Task, dict[str, Dataset[Any]]]:
    source = digit_images() if data == "digits" else load_data(data, folder)
    few = Examples(source.test.inputs[:images], source.test.targets[:images], source.preparation)  # type: ignore[index]
    changed: dict[str, Dataset[Any]] = {
        f"{name} {severity}": as_tensors(shift(few, partial(corrupt, name=name, severity=severity)))
        for name in corruptions
        for severity in severities
    }
    return small_task(source, counts, model), changed


def _run(job: Job, size: Size, folder: Path | None) -> dict[str, Any]:
    wanted = size.options
    names = tuple(wanted["corruptions"] or sorted(CORRUPTIONS))
    task, changed = _task(
        job.data, folder, size.counts, wanted["model"], names, tuple(wanted["severities"]), wanted["images"]
    )
    result, _ = train_and_measure(job, size, task, shifted=changed)
    metrics = result["metrics"]
    for measure in _MEASURES:
        for severity in wanted["severities"]:
            values = [metrics.pop(f"{measure}@{name} {severity}") for name in names]
            metrics[f"{measure}@severity {severity}"] = sum(values) / len(values)
    metrics["lost accuracy"] = metrics["accuracy"] - metrics[f"accuracy@severity {max(wanted['severities'])}"]
    return result


def _conclude(results: Results, size: Size) -> Outcome:
    severities = size.options["severities"]
    worst = f"severity {max(severities)}"
    others = [name for name in ("ensemble", "dropout") if name in size.methods]
    lost: dict[str, Any] = {"direction": "low", "margin": 0.005, "tests": len(others)}
    verdicts = [
        all_of(ROBUST, [beats(results, ROBUST, "lost accuracy", _OURS, name, **lost) for name in others]),
        all_of(
            CALIBRATED,
            [beats(results, CALIBRATED, f"{m}@{worst}", _OURS, "deterministic", tests=2) for m in ("nll", "ece")],
        ),
        exceeds(results, ENTROPY, _OURS, f"entropy@{worst}", "entropy", margin=0.02),
    ]
    measures = [
        *_MEASURES,
        *(f"{m}@severity {s}" for m in ("accuracy", "nll", "ece") for s in severities),
        "lost accuracy",
    ]
    drawn = {"accuracy": "accuracy", "nll": "NLL", "ece": "ECE", "entropy": "entropy, nats"}
    figures = {m: lines(_series(results, m, severities), "severity", label) for m, label in drawn.items()}
    return Outcome({"corruptions": summary(results, measures)}, verdicts, figures)


def _series(results: Results, measure: str, severities: list[int]) -> dict[str, dict[float, list[float]]]:
    names: dict[float, str] = {0.0: measure} | {float(s): f"{measure}@severity {s}" for s in severities}
    return {
        method: {at: list(results.column(name, method).values()) for at, name in names.items()}
        for method in results.methods()
    }


STUDY = Study(
    "subnetworks-shifts",
    "Sensitivity-guided subnetworks, figure 5: corruptions of CIFAR-10 with the small ResNet",
    (ROBUST, CALIBRATED, ENTROPY),
    {
        "smoke": Size(
            "120 digits of 8x8, 2 epochs, a small CNN, two corruptions.",
            0.1,
            ("digits",),
            (),
            {"deterministic": "deterministic", "ensemble": "ensemble:members=2", **partials([0.05])},
            Budget(epochs=2, batch_size=40, lr=1e-2),
            seeds=1,
            samples=4,
            counts=(120, 40, 100),
            options={
                "model": "small_cnn",
                "corruptions": ["contrast", "gaussian_noise"],
                "severities": [1, 5],
                "images": 40,
            },
        ),
        "cpu": Size(
            "5,000 images, 12 epochs and the small ResNet of appendix H.3.1 (figure 5: 50,000, 50 and ResNet-18), 400 "
            "test images for each corruption, three of the five severities, 1 mirrored draw a step. The linearised "
            "Laplace approximation is left out.",
            12,
            ("cifar10",),
            ("cifar10",),
            _PLAIN | partials([0.01, 0.05]),
            Budget(epochs=12, batch_size=64, lr=2e-3, schedule="cosine"),
            seeds=3,
            samples=8,
            counts=(5000, 1000, 3000),
            options={"model": "small_resnet", "corruptions": [], "severities": [1, 3, 5], "images": 400},
        ),
        "paper": Size(
            "The learning rate falls as a cosine (the paper: by steps after a warm-up to 1.6). The linearised Laplace "
            "approximation is left out.",
            100_000,
            ("cifar10",),
            ("cifar10",),
            {**_PLAIN, "vi": "vi:pretrain=0,prior=normal,kl_start=0.2,kl_end=0.01,draws=5"}
            | partials([0.01, 0.05], "prior=normal,kl_start=0.2,kl_end=0.01,draws=5"),
            Budget(epochs=100, batch_size=200, optimizer="sgd", lr=0.1, schedule="cosine", weight_decay=1e-4),
            seeds=3,
            samples=5,
            options={"model": "resnet18_cifar7", "corruptions": [], "severities": [1, 2, 3, 4, 5], "images": 10_000},
        ),
    },
    _run,
    _conclude,
)
