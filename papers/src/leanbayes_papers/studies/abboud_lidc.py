"""000, table 1, figures 3 and 4 on LIDC-IDRI: a U-Net on nodules that four radiologists have marked, each their way."""

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
from leanbayes_papers.base import Claim, Experiment, Job, Outcome, Results, Size, Verdict
from leanbayes_papers.figures import by_rate, maps
from leanbayes_papers.judge import all_of, beats, matches, summary, within
from leanbayes_papers.segmentation import from_trained, measured_by_epochs
from leanbayes_papers.training import partials, rates_of, repeatable

__all__ = ["EXPERIMENT"]

_FULL = "vi from random weights"
_FROM_RANDOM = "vi:pretrain=0,prior=normal,kl_start=0.2,kl_end=0.01"
_PLAIN = {"deterministic": "deterministic", "ensemble": "ensemble", _FULL: _FROM_RANDOM}
_SHOWN = 2  # images in the figure
_OURS, _MOST = "partial 1 %", "partial 80 %"
_IOU = "iou/1"
_LEAST = (
    0.1  # of IoU: a network below it finds no lesions, and Dice, which is 1 where there are none, says nothing of it
)

MATCHES = Claim(
    "000",
    "section 3.3, table 1",
    "“Setting only 1% of the network's parameters to Bayesian yields comparable or superior performance to ensembles” "
    "(Dice, Brier)",
)
FULL = Claim(
    "000",
    "section 3.3, table 1",
    "against the fully Bayesian model “our training approach demonstrates significantly better performance” (Dice "
    "0.80 against 0.67)",
)
DECLINE = Claim(
    "000",
    "figure 4",
    "more random weights are worse: the Dice score is lower at 80 % than at 1 %, the Brier score higher",
)
DOUBT = Claim("000", "section 3.3", "1 % has a lower entropy than the fully Bayesian model (0.010 against 0.3)")
ALIGNS = Claim(
    "000",
    "figure 3",
    "the model “aligns not only with the ground truth majority vote but also with the uncertainty of the ground truth "
    "segmentation”: its entropy correlates with that of the raters' votes",
)


def _smaller(examples: Examples, count: int | None, side: int) -> Examples:
    """So many of the patches, of each the middle, where the nodule is."""
    masks = examples.targets
    assert isinstance(masks, Raters)
    assert isinstance(examples.inputs, Tensor)
    places = torch.randperm(len(examples), generator=torch.Generator().manual_seed(0))[:count]
    start = (examples.inputs.shape[-1] - side) // 2
    middle = slice(start, start + side)
    images = examples.inputs[places][..., middle, middle].float() / 255
    fixed = None if masks.fixed is None else masks.fixed[places]
    plan = replace(examples.preparation, size=(side, side))
    return Examples(images, Raters(masks.masks[places][:, :, middle, middle], fixed), plan)


@cache
def _task(
    data: str, folder: Path | None, counts: tuple[int | None, ...], side: int, width: int, depth: int
) -> tuple[Task, Examples]:
    whole: Source = lesions(patients=10, size=16) if data == "lesions" else load_data(data, folder)
    old = (whole.train, whole.validation, whole.test)
    train, validation, test = (_smaller(some, count, side) for some, count in zip(old, counts, strict=True))
    source = Source(data, train, validation, test, test.preparation)
    return replace(source.task("unet"), model=_UNet(width, depth)), test


class _UNet:
    """Makes the network; other processes can be sent it."""

    def __init__(self, width: int, depth: int) -> None:
        self.width, self.depth = width, depth

    def __call__(self) -> torch.nn.Module:
        return unet(1, 2, self.width, self.depth)


def _run(job: Job, size: Size, folder: Path | None) -> dict[str, Any]:
    wanted = size.options
    task, test = _task(job.data, folder, size.counts, wanted["side"], wanted["width"], wanted["depth"])
    found, trained = measured_by_epochs(job, size, task)
    return found | _against_raters(trained, test, size, job.seed, found["metrics"])


def _against_raters(
    trained: Trained, test: Examples, size: Size, seed: int, metrics: dict[str, float]
) -> dict[str, Any]:
    """How draws and doubts compare with four raters, over all test images; and pictures of the first few."""
    assert isinstance(test.targets, Raters)
    raters, generator, kept = test.targets.by_rater(), torch.Generator().manual_seed(seed), []
    for start in range(0, length(test), 50):
        x = torch.stack([test[place][0] for place in range(start, min(start + 50, length(test)))])
        settings: dict[str, Any] = {"samples": size.samples, "keep_samples": True, "generator": generator}
        said = predict(repeatable(trained.predictor), x, likelihood=trained.likelihood, **settings)
        assert said.samples is not None
        own = raters[:, start : start + len(x)]
        kept.append((said, generalised_energy_distance(said.samples.argmax(2), own), rater_agreement(said.total, own)))
    agreement = torch.cat([part[2] for part in kept])
    metrics["energy distance"] = torch.cat([part[1] for part in kept]).mean().item()
    known = agreement[~agreement.isnan()]
    if len(known):
        metrics["rater agreement"] = known.mean().item()
    first = kept[0][0]
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
    """As it is, unless one of the networks that are compared finds no lesions."""
    found = {name: list(results.column(_IOU, name).values()) for name in _COMPARED[verdict.claim]}
    blind = {name: sum(some) / len(some) for name, some in found.items() if some and sum(some) / len(some) < _LEAST}
    if not blind:
        return verdict
    told = ", ".join(f"{name} {mean:.3f}" for name, mean in blind.items())
    return Verdict(
        verdict.claim, "not testable here", f"networks that find no lesions tell nothing: their IoU is {told}"
    )


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
    known = {name: rate for name, rate in rates.items() if name in results.methods()}
    drawn = {"dice": "Dice score", "brier": "Brier score", "entropy": "entropy, nats"} if known else {}
    figures = {measure: by_rate(results, measure, known, label) for measure, label in drawn.items()}
    rows = {name: results.first(name) for name in ("ensemble", _OURS, _FULL)}
    shown = {name: row for name, row in rows.items() if row is not None}
    for number in range(_SHOWN if shown else 0):
        pictures = {"raters": next(iter(shown.values()))["raters"][number]}
        figures[f"doubt-{number}"] = maps(
            pictures | {name: row["entropy"][number] for name, row in shown.items()}, "nats"
        )
    tables = {name: summary(results, measures, name) for name in size.data}
    return Outcome(tables, [_of_networks_that_see(verdict, results) for verdict in verdicts], figures)


EXPERIMENT = Experiment(
    "abboud-lidc",
    "000, table 1 and figures 3 and 4 on LIDC-IDRI with four raters",
    (MATCHES, FULL, DECLINE, DOUBT, ALIGNS),
    {
        "smoke": Size(
            "made-up lesions of 16x16, 10 patients, 2 and 4 epochs, a tiny U-Net, an ensemble of 2",
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
            "the middle 48x48 pixels of 800 patches in one of four folds (000: 11,322 of 128x128), a U-Net of 8 to 64 "
            "channels (000: 64 to 1024), 8 epochs of the plain network and 8 of the variational ones that start from "
            "it (000: 50 and 50), no class weights, 1 mirrored draw a step (000: 5), fitted prior scales for "
            "partial networks; so partial networks and VI have twice the epochs of the plain network and of each "
            "ensemble member",
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
            "one of four folds; no class weights",
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
    from_trained,
)
