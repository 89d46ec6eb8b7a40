"""Abboud et al. 2024, table 1 and figures 3 and 4, on ISIC: a U-Net that segments skin lesions."""

from functools import cache
from pathlib import Path
from typing import Any

from leanbayes.lab.data import Task, load_data
from leanbayes.lab.recipes import Budget
from leanbayes_papers import cite
from leanbayes_papers.figures import by_rate
from leanbayes_papers.segmentation import (
    LONGER,
    jobs_from_trained,
    pictures,
    results_with_pictures,
    scenes,
    segmentation_task,
    train_and_segment,
)
from leanbayes_papers.study import Claim, Job, Outcome, Results, Size, Study
from leanbayes_papers.training import partials, rates_of
from leanbayes_papers.verdicts import all_of, beats, exceeds, matches, summary

__all__ = ["STUDY"]

_OURS, _FULL = "partial 1 %", "vi from random weights"
_HELD = "partial 1 %, one draw for a batch, held statistics"
_METHODS = {
    "deterministic": "deterministic",
    LONGER: "deterministic",
    "ensemble": "ensemble",
    "vi": "vi",
    _FULL: "vi:pretrain=0,prior=normal,kl_start=0.2,kl_end=0.01",
    _HELD: "partial:rate=0.01,propagate=sample",
}
_IOU = "iou/1"

MATCHES = Claim(
    cite.ABBOUD,
    "section 3.3, table 1",
    "“Setting only 1% of the network's parameters to Bayesian yields comparable or superior performance to ensembles” "
    "(ISIC: IoU 0.783 against 0.808, Brier score 0.068 against 0.109). Tested: the IoU is at most 0.025 lower, and the "
    "Brier score is as good.",
)
FULL = Claim(
    cite.ABBOUD,
    "section 3.3, table 1",
    "Compared with the fully random network “our training approach demonstrates significantly better performance” "
    "(ISIC: IoU 0.783 against 0.675, Brier score 0.068 against 0.111).",
)
WORSE = Claim(
    cite.ABBOUD,
    "section 3.3, figure 3",
    "“training a fully Bayesian network results in inferior performance, higher uncertainty, and higher false "
    "negative rate”. Tested: the entropy, and the share of the pixels of lesions that is missed, are higher than "
    "those of the 1 % network.",
)
DECLINE = Claim(
    cite.ABBOUD,
    "table 1, figure 4",
    "More random weights are worse: on ISIC the IoU is 0.783 at 1 % and 0.677 at 20 %.",
)
BORDERS = Claim(
    cite.ABBOUD,
    "section 3.3, figure 3",
    "The 1 % network “effectively expresses uncertainty … near borders of ROIs or unclear boundaries of skin lesions”. "
    "Tested: its entropy is higher at the edges of lesions than elsewhere.",
)
NORMS = Claim(
    cite.OURS,
    "batch norm",
    "The 1 % network is better (NLL, IoU) when the halves of a batch have mirrored draws and batch norm uses the "
    "statistics of the batch than when the whole batch has one draw and batch norm uses fixed statistics.",
)


@cache
def _task(data: str, folder: Path | None, counts: tuple[int | None, ...], side: int, width: int, depth: int) -> Task:
    source = scenes(2) if data == "scenes" else load_data(data, folder, size=side)
    return segmentation_task(source, counts, width, depth)


def _run(job: Job, size: Size, folder: Path | None) -> dict[str, Any]:
    wanted = size.options
    task = _task(job.data, folder, size.counts, wanted["side"], wanted["width"], wanted["depth"])
    result, _, predicted = train_and_segment(job, size, task)
    lesion = predicted.truth == 1
    result["metrics"]["missed"] = ((predicted.chosen == 0) & lesion).sum().item() / max(lesion.sum().item(), 1)
    return result


def _conclude(results: Results, size: Size) -> Outcome:
    both = (_IOU, "brier")
    margins = {_IOU: 0.01, "brier": 0.01}
    verdicts = [
        all_of(
            MATCHES,
            [
                matches(results, MATCHES, _IOU, _OURS, "ensemble", margin=0.025, tests=2),
                matches(results, MATCHES, "brier", _OURS, "ensemble", tests=2),
            ],
        ),
        all_of(FULL, [beats(results, FULL, m, _OURS, _FULL, margin=margins[m], tests=2) for m in both]),
        all_of(
            WORSE,
            [
                beats(results, WORSE, measure, _OURS, _FULL, direction="low", margin=0.01, tests=2)
                for measure in ("entropy", "missed")
            ],
        ),
        beats(results, DECLINE, _IOU, _OURS, "partial 20 %", margin=0.01),
        exceeds(results, BORDERS, _OURS, "entropy@edges", "entropy@inside", margin=0.02),
        all_of(NORMS, [beats(results, NORMS, m, _OURS, _HELD, margin=0.01, tests=2) for m in ("nll", _IOU)]),
    ]
    measures = (
        _IOU, "dice", "brier", "nll", "ece", "entropy", "missed", "entropy@edges", "entropy@inside", "error/auroc",
        "flops", "parameters", "random",
    )  # fmt: skip
    rates = {name: rate for name, rate in rates_of(size).items() if name != _HELD}
    figures = {}
    if any(method in rates for method in results.methods()):
        figures["iou"] = by_rate(results, _IOU, rates, "IoU")
    rows = results_with_pictures(results, ("ensemble", _OURS, _FULL))
    if rows:
        figures["overlays"] = pictures(rows, 2, against=True)
    return Outcome({"skin lesions": summary(results, measures)}, verdicts, figures)


STUDY = Study(
    "abboud-isic",
    "Abboud et al. 2024, table 1 and figures 3 and 4: segmentation of skin lesions",
    (MATCHES, FULL, WORSE, DECLINE, BORDERS, NORMS),
    {
        "smoke": Size(
            "Made-up scenes of 16x16 with two classes, 1 or 2 epochs, a tiny U-Net, an ensemble of 2.",
            0.1,
            ("scenes",),
            (),
            {"ensemble": "ensemble:members=2", _HELD: _METHODS[_HELD], **partials([0.01, 0.2])},
            Budget(epochs=1, batch_size=10, lr=1e-2),
            seeds=1,
            samples=4,
            options={"side": 16, "width": 4, "depth": 1},
        ),
        "cpu": Size(
            "400 images of ISIC 2017 at 48x48 (the paper: 2,594 of 2018 at 224x224). The 250 test images are split off "
            "the training images. The U-Net has 8 to 64 channels (the paper: 64 to 1024). The plain network has 8 "
            "epochs, and the variational networks that start from it have 8 more (the paper: 50 and 50); so partly "
            "random networks and VI have twice the epochs of the plain network and of each ensemble member. There are "
            "no class weights, 1 mirrored draw a step (the paper: 5), and fitted prior scales for partly random "
            "networks.",
            14,
            ("isic2017",),
            ("isic2017",),
            _METHODS | partials([0.001, 0.01, 0.2, 0.8]),
            Budget(epochs=8, batch_size=10, lr=5e-3, schedule="cosine"),
            seeds=3,
            samples=8,
            counts=(400, 80, 250),
            options={"side": 48, "width": 8, "depth": 3},
        ),
        "paper": Size(
            "The 2,000 training images of ISIC 2017 (the paper: 2,594 of 2018). There are no class weights.",
            100_000,
            ("isic2017",),
            ("isic2017",),
            {**_METHODS, _FULL: "vi:pretrain=0,prior=normal,kl_start=0.2,kl_end=0.01,draws=5"}
            | partials([0.001, 0.01, 0.05, 0.1, 0.2, 0.4, 0.8], "prior=normal,kl_start=0.2,kl_end=0.01,draws=5"),
            Budget(epochs=50, batch_size=10, optimizer="sgd", lr=0.01, weight_decay=1e-5),
            seeds=3,
            samples=5,
            options={"side": 224, "width": 64, "depth": 4},
        ),
    },
    _run,
    _conclude,
    jobs_from_trained,
)
