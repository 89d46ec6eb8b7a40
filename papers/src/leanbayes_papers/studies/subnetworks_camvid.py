"""001, figures 8, 9 and 13 on street scenes: a U-Net on CamVid, where 001 has Cityscapes."""

from functools import cache
from pathlib import Path
from typing import Any

from leanbayes.lab.data import Task, load_data
from leanbayes.lab.recipes import Budget
from leanbayes_papers.base import Claim, Experiment, Job, Outcome, Results, Size
from leanbayes_papers.figures import lines
from leanbayes_papers.inside import by_depth, exceeds, random_by_part, ratios
from leanbayes_papers.judge import all_of, matches, summary, within
from leanbayes_papers.segmentation import (
    LONGER,
    from_trained,
    pictures,
    scenes,
    segmentation_task,
    shown,
    trained_and_measured,
)
from leanbayes_papers.training import partials

__all__ = ["EXPERIMENT"]

_OURS, _FULL = "partial 1 %", "vi from random weights"
_METHODS = {
    "deterministic": "deterministic",
    LONGER: "deterministic",
    "ensemble": "ensemble",
    "vi": "vi",
    _FULL: "vi:pretrain=0,prior=normal,kl_start=0.2,kl_end=0.01",
}
_ALL = float("inf")

LOSS = Claim(
    "001",
    "section 4.4, figure 8",
    "“PBN has less than 5% degradation in IoU performance compared to the deterministic model”: 1 % has at least 95 % "
    "of its mean IoU",
)
COMPARABLE = Claim(
    "001",
    "section 4.4, figure 8",
    "“The performance of the PBN on the segmentation task is both quantitatively and qualitatively comparable to that "
    "of ensembles”: within 7 % of their mean IoU, and no worse a Brier score and ECE",
)
FULL = Claim(
    "001",
    "section 4.4, figure 8",
    "“the standard VI model performs very poorly with a 40% degradation in performance”: from random weights and with "
    "a prior N(0, 1) it loses at least 20 % of the plain network's mean IoU, in twice the epochs",
)
START = Claim(
    "ours",
    "subnetworks-camvid",
    "VI from the trained network and with fitted prior scales keeps 95 % of the plain network's mean IoU",
)
FAIR = Claim(
    "ours",
    "subnetworks-camvid",
    "1 % also keeps 95 % of the mean IoU of a plain network that was trained for as many epochs in all",
)
DOUBT = Claim(
    "001",
    "section 4.4, figure 9",
    "“the PBN-1% segmentation uncertainty is consistent with errors in the prediction and at class boundaries”: its "
    "entropy is higher at wrong pixels than at right ones, and at edges of classes than inside",
)
ENDS = Claim(
    "001",
    "section 4.4, figure 13",
    "“at low r_bayes < 5% … the highest magnitude gradients are near the network edges, both input and output”: of "
    "the first block's weights, and of the last block's and the head's, more are random than of those between",
)


@cache
def _task(
    data: str, folder: Path | None, counts: tuple[int | None, ...], sides: tuple[int, int], width: int, depth: int
) -> Task:
    source = scenes(3) if data == "scenes" else load_data(data, folder, size=sides)
    return segmentation_task(source, counts, width, depth)


def _run(job: Job, size: Size, folder: Path | None) -> dict[str, Any]:
    wanted = size.options
    height, width = wanted["sides"]
    task = _task(job.data, folder, size.counts, (height, width), wanted["width"], wanted["depth"])
    found, trained, _ = trained_and_measured(job, size, task)
    metrics = found["metrics"]
    for number, name in enumerate(wanted["classes"]):
        if f"iou/{number}" in metrics:
            metrics[f"iou/{name}"] = metrics.pop(f"iou/{number}")
    metrics |= random_by_part(trained.predictor, first=1, last=2)
    return found


def _conclude(results: Results, size: Size) -> Outcome:
    def kept(claim: Claim, a: str, b: str, low: float, high: float) -> Any:
        return within(claim, ratios(results, "miou", a, b), low, high, f"mean IoU of {a} over that of {b}")

    verdicts = [
        kept(LOSS, _OURS, "deterministic", 0.95, _ALL),
        all_of(
            COMPARABLE,
            [kept(COMPARABLE, _OURS, "ensemble", 0.93, _ALL)]
            + [matches(results, COMPARABLE, m, _OURS, "ensemble", tests=2) for m in ("brier", "ece")],
        ),
        kept(FULL, _FULL, "deterministic", 0.0, 0.8),
        kept(START, "vi", "deterministic", 0.95, _ALL),
        kept(FAIR, _OURS, LONGER, 0.95, _ALL),
        all_of(
            DOUBT,
            [
                exceeds(results, DOUBT, _OURS, f"entropy@{large}", f"entropy@{small}", margin=0.02, tests=2)
                for large, small in (("wrong", "right"), ("edges", "inside"))
            ],
        ),
        all_of(
            ENDS,
            [
                exceeds(results, ENDS, _OURS, f"random@{end}", "random@middle", margin=0.002, tests=2)
                for end in ("input", "output")
            ],
        ),
    ]
    measures = (
        "miou", "accuracy", "brier", "nll", "ece", "entropy", "error/auroc", "entropy@edges", "entropy@inside",
        "entropy@wrong", "entropy@right", "flops", "parameters", "random@input", "random@middle", "random@output",
    )  # fmt: skip
    classes = size.options["classes"]
    of_class = [f"iou/{name}" for name in classes]
    tables = {"street scenes": summary(results, measures), "IoU by class": summary(results, of_class)}
    drawn = {
        m: {float(n): list(results.column(name, m).values()) for n, name in enumerate(of_class)}
        for m in results.methods()
    }
    figures = {"iou": lines(drawn, "class, in the order of the table", "IoU")}
    depths = by_depth(results)
    if depths:
        figures["sparsity"] = lines(depths, "part of the network, from the input on", "sparsity")
    rows = shown(results, ("ensemble", _OURS, _FULL))
    if rows:
        figures["doubt"] = pictures(rows, len(classes))
    return Outcome(tables, verdicts, figures)


_CLASSES = [
    "sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist",
]  # fmt: skip

EXPERIMENT = Experiment(
    "subnetworks-camvid",
    "001, figures 8, 9 and 13: segmentation of street scenes",
    (LOSS, COMPARABLE, FULL, START, FAIR, DOUBT, ENDS),
    {
        "smoke": Size(
            "made-up scenes of 16x16 with three classes, 1 and 2 epochs, a tiny U-Net, an ensemble of 2",
            0.1,
            ("scenes",),
            (),
            {"deterministic": "deterministic", "ensemble": "ensemble:members=2", "vi": "vi", **partials([0.01])},
            Budget(epochs=1, batch_size=10, lr=1e-2),
            seeds=1,
            samples=4,
            options={"sides": [16, 16], "width": 4, "depth": 1, "classes": ["dark", "grey", "bright"]},
        ),
        "cpu": Size(
            "CamVid at 36x48 (001: Cityscapes at 256x512), a U-Net of 8 to 64 channels (001: 64 to 1024), 12 epochs "
            "of the plain network and 12 of the variational ones that start from it (001: 150 and 150; VI four times "
            "that, here twice), no class weights, 1 mirrored draw a step (001: 5), fitted prior scales for partial "
            "networks; so partial networks and VI have twice the epochs of the plain network and of each ensemble "
            "member",
            15,
            ("camvid",),
            ("camvid",),
            _METHODS | partials([0.01, 0.05]),
            Budget(epochs=12, batch_size=8, lr=5e-3, schedule="cosine"),
            seeds=3,
            samples=8,
            counts=(None, 60, 150),
            options={"sides": [36, 48], "width": 8, "depth": 3, "classes": _CLASSES},
        ),
        "paper": Size(
            "CamVid for Cityscapes; the learning rate falls as a cosine (001: halved on plateaus); VI has twice the "
            "epochs (001: four times); no class weights",
            150_000,
            ("camvid",),
            ("camvid",),
            {**_METHODS, _FULL: "vi:pretrain=0,prior=normal,kl_start=0.2,kl_end=0.01,draws=5"}
            | partials([0.01, 0.05], "prior=normal,kl_start=0.2,kl_end=0.01,draws=5"),
            Budget(epochs=150, batch_size=8, optimizer="sgd", lr=0.1, schedule="cosine", weight_decay=1e-5),
            seeds=3,
            samples=5,
            options={"sides": [180, 240], "width": 64, "depth": 4, "classes": _CLASSES},
        ),
    },
    _run,
    _conclude,
    from_trained,
)
