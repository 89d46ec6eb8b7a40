"""Abboud et al. 2024, table 1 and figures 3 and 4, on LIDC-IDRI: a U-Net on nodules that four radiologists marked."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leanbayes.lab.data import Examples, Raters, Source, Task, length, lesions, load_data
from leanbayes.lab.models import unet
from leanbayes.lab.recipes import Budget, Trained
from leanbayes.metrics import generalised_energy_distance, rater_agreement, rater_entropy
from leanbayes.prediction import predict
from leanbayes_papers import cite
from leanbayes_papers.figures import by_rate, maps
from leanbayes_papers.segmentation import jobs_from_trained, train_and_measure_by_epochs
from leanbayes_papers.study import Claim, Job, Outcome, Results, Size, Study, Verdict
from leanbayes_papers.training import partials, rates_of, repeatable
from leanbayes_papers.verdicts import all_of, beats, matches, summary, within

__all__ = ["STUDY"]

_FULL = "vi from random weights"
_FROM_RANDOM = "vi:pretrain=0,prior=normal,kl_start=0.2,kl_end=0.01"
_PLAIN = {"deterministic": "deterministic", "ensemble": "ensemble", _FULL: _FROM_RANDOM}
_SHOWN = 2  # how many images the figure shows
_OURS, _MOST = "partial 1 %", "partial 80 %"
_IOU = "iou/1"
_LEAST_IOU = 0.1
"""A network below this IoU finds no lesions. Its Dice score, which is 1 for images without any, is meaningless."""

MATCHES = Claim(
    cite.ABBOUD,
    "section 3.3, table 1",
    "“Setting only 1% of the network's parameters to Bayesian yields comparable or superior performance to ensembles”. "
    "Tested: Dice and Brier scores.",
)
FULL = Claim(
    cite.ABBOUD,
    "section 3.3, table 1",
    "Compared with the fully random network “our training approach demonstrates significantly better performance” "
    "(Dice score 0.80 against 0.67).",
)
DECLINE = Claim(
    cite.ABBOUD,
    "figure 4",
    "More random weights are worse: the Dice score is lower at 80 % than at 1 %, and the Brier score is higher.",
)
DOUBT = Claim(
    cite.ABBOUD,
    "section 3.3",
    "The 1 % network has a lower entropy than the fully random network (0.010 against 0.3).",
)
ALIGNS = Claim(
    cite.ABBOUD,
    "figure 3",
    "The model “aligns not only with the ground truth majority vote but also with the uncertainty of the ground truth "
    "segmentation”. Tested: its entropy correlates with the entropy of the raters' votes.",
)


def _smaller(examples: Examples, count: int | None, side: int) -> Examples:
    """Return ``count`` of the patches, cut to the middle, where the nodule lies."""
    masks = examples.targets
    assert isinstance(masks, Raters)
    assert isinstance(masks.masks, Tensor)
    assert isinstance(examples.inputs, Tensor)
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(0))[:count]
    start = (examples.inputs.shape[-1] - side) // 2
    middle = slice(start, start + side)
    images = examples.inputs[order][..., middle, middle].float() / 255
    fixed = None if masks.fixed is None else masks.fixed[order]
    plan = replace(examples.preparation, size=(side, side))
    return Examples(images, Raters(masks.masks[order][:, :, middle, middle], fixed), plan)


@cache
def _task(
    data: str, folder: Path | None, counts: tuple[int | None, ...], side: int, width: int, depth: int
) -> tuple[Task, Examples]:
    whole: Source = lesions(patients=10, size=16) if data == "lesions" else load_data(data, folder)
    parts = (whole.train, whole.validation, whole.test)
    train, validation, test = (_smaller(part, count, side) for part, count in zip(parts, counts, strict=True))
    source = Source(data, train, validation, test, test.preparation)
    return replace(source.task("unet"), model=_UNet(width, depth)), test


class _UNet:
    """A function that makes the network, and that can be sent to other processes."""

    def __init__(self, width: int, depth: int) -> None:
        self.width, self.depth = width, depth

    def __call__(self) -> torch.nn.Module:
        return unet(1, 2, self.width, self.depth)


def _run(job: Job, size: Size, folder: Path | None) -> dict[str, Any]:
    wanted = size.options
    task, test = _task(job.data, folder, size.counts, wanted["side"], wanted["width"], wanted["depth"])
    result, trained = train_and_measure_by_epochs(job, size, task)
    return result | _against_raters(trained, test, size, job.seed, result["metrics"])


def _against_raters(
    trained: Trained, test: Examples, size: Size, seed: int, metrics: dict[str, float]
) -> dict[str, Any]:
    """Add to ``metrics`` how draws and uncertainty compare with the raters; return pictures of the first images."""
    assert isinstance(test.targets, Raters)
    raters, generator, batches = test.targets.by_rater(), torch.Generator().manual_seed(seed), []
    for start in range(0, length(test), 50):
        x = torch.stack([test[index][0] for index in range(start, min(start + 50, length(test)))])
        settings: dict[str, Any] = {"samples": size.samples, "keep_samples": True, "generator": generator}
        predicted = predict(repeatable(trained.predictor), x, likelihood=trained.likelihood, **settings)
        assert predicted.samples is not None
        marked = raters[:, start : start + len(x)]
        distance = generalised_energy_distance(predicted.samples.argmax(2), marked)
        batches.append((predicted, distance, rater_agreement(predicted.total, marked)))
    agreement = torch.cat([batch[2] for batch in batches])
    metrics["energy distance"] = torch.cat([batch[1] for batch in batches]).mean().item()
    defined = agreement[~agreement.isnan()]
    if len(defined):
        metrics["rater agreement"] = defined.mean().item()
    first = batches[0][0]
    return {
        "predicted": first.mean[:_SHOWN, 1].tolist(),
        "entropy": first.total[:_SHOWN].tolist(),
        "raters": rater_entropy(raters)[:_SHOWN].tolist(),
    }


_COMPARED = {
    MATCHES: (_OURS, "ensemble"),
    FULL: (_OURS, _FULL),
    DECLINE: (_OURS, _MOST),
    DOUBT: (_OURS, _FULL),
    ALIGNS: (_OURS,),
}


def _of_networks_that_see(verdict: Verdict, results: Results) -> Verdict:
    """Return the verdict, unless one of the networks that it compares finds no lesions."""
    columns = {name: list(results.column(_IOU, name).values()) for name in _COMPARED[verdict.claim]}
    means = {name: sum(values) / len(values) for name, values in columns.items() if values}
    blind = ", ".join(f"{name} {mean:.3f}" for name, mean in means.items() if mean < _LEAST_IOU)
    if not blind:
        return verdict
    why = f"a network that finds no lesions is no comparison: the IoU is {blind}"
    return Verdict(verdict.claim, "not testable here", why)


def _conclude(results: Results, size: Size) -> Outcome:
    measures = (
        "dice",
        _IOU,
        "brier",
        "nll",
        "ece",
        "entropy",
        "energy distance",
        "rater agreement",
        "flops",
        "parameters",
    )
    both = ("dice", "brier")
    verdicts = [
        all_of(MATCHES, [matches(results, MATCHES, m, _OURS, "ensemble", tests=2) for m in both]),
        beats(results, FULL, "dice", _OURS, _FULL),
        all_of(DECLINE, [beats(results, DECLINE, m, _OURS, _MOST, tests=2) for m in both]),
        beats(results, DOUBT, "entropy", _OURS, _FULL, direction="low", margin=0.005),
        within(ALIGNS, list(results.column("rater agreement", _OURS).values()), 0.1, 1.0, "mean correlation"),
    ]
    rates = rates_of(size)
    finished = {name: rate for name, rate in rates.items() if name in results.methods()}
    labels = {"dice": "Dice score", "brier": "Brier score", "entropy": "entropy, nats"} if finished else {}
    figures = {measure: by_rate(results, measure, finished, label) for measure, label in labels.items()}
    rows = {name: results.first(name) for name in ("ensemble", _OURS, _FULL)}
    shown = {name: row for name, row in rows.items() if row is not None}
    for number in range(_SHOWN if shown else 0):
        pictures = {"raters": next(iter(shown.values()))["raters"][number]}
        figures[f"doubt-{number}"] = maps(
            pictures | {name: row["entropy"][number] for name, row in shown.items()}, "nats"
        )
    tables = {name: summary(results, measures, name) for name in size.data}
    return Outcome(tables, [_of_networks_that_see(verdict, results) for verdict in verdicts], figures)


STUDY = Study(
    "abboud-lidc",
    "Abboud et al. 2024, table 1 and figures 3 and 4, on LIDC-IDRI: segmentation of nodules with four raters",
    (MATCHES, FULL, DECLINE, DOUBT, ALIGNS),
    {
        "smoke": Size(
            "Made-up lesions of 16x16 in 10 patients, 2 or 4 epochs, a tiny U-Net, an ensemble of 2.",
            0.1,
            ("lesions",),
            (),
            {"ensemble": "ensemble:members=2", _FULL: _FROM_RANDOM, **partials([0.01, 0.8])},
            Budget(epochs=2, batch_size=10, lr=1e-2),
            seeds=1,
            samples=4,
            options={"side": 16, "width": 4, "depth": 1},
        ),
        "cpu": Size(
            "The middle 48x48 pixels of 800 patches in one of four folds (the paper: 11,322 patches of 128x128). The "
            "U-Net has 8 to 64 channels (the paper: 64 to 1024). The plain network has 8 epochs, and the variational "
            "networks that start from it have 8 more (the paper: 50 and 50); so partly random networks and VI have "
            "twice the epochs of the plain network and of each ensemble member. There are no class weights, 1 mirrored "
            "draw a step (the paper: 5), and fitted prior scales for partly random networks.",
            15,
            ("lidc",),
            ("lidc",),
            _PLAIN | partials([0.001, 0.01, 0.8]),
            Budget(epochs=8, batch_size=10, lr=3e-3, schedule="cosine"),
            seeds=3,
            samples=8,
            counts=(800, 150, 300),
            options={"side": 48, "width": 8, "depth": 3},
        ),
        "paper": Size(
            "One of four folds. There are no class weights.",
            200_000,
            ("lidc",),
            ("lidc",),
            {**_PLAIN, _FULL: f"{_FROM_RANDOM},draws=5"}
            | partials([0.001, 0.01, 0.05, 0.1, 0.2, 0.4, 0.8], "prior=normal,kl_start=0.2,kl_end=0.01,draws=5"),
            Budget(epochs=50, batch_size=10, optimizer="sgd", lr=0.01, weight_decay=1e-5),
            seeds=3,
            samples=5,
            options={"side": 128, "width": 64, "depth": 4},
        ),
    },
    _run,
    _conclude,
    jobs_from_trained,
)
