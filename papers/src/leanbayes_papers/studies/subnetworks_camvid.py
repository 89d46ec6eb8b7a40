"""Sensitivity-guided subnetworks, figures 8, 9 and 13: a U-Net on the street scenes of CamVid, not of Cityscapes."""

from functools import cache
from pathlib import Path
from typing import Any

from leanbayes.lab.data import Task, load_data
from leanbayes.lab.recipes import Budget
from leanbayes_papers import cite
from leanbayes_papers.figures import lines
from leanbayes_papers.placement import by_depth, random_by_part
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
from leanbayes_papers.training import partials
from leanbayes_papers.verdicts import all_of, exceeds, matches, ratios, summary, within

__all__ = ["STUDY"]

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
    cite.SUBNETWORKS,
    "section 4.4, figure 8",
    "“PBN has less than 5% degradation in IoU performance compared to the deterministic model”. Tested: the 1 % "
    "network has at least 95 % of the mean IoU of the plain network.",
)
COMPARABLE = Claim(
    cite.SUBNETWORKS,
    "section 4.4, figure 8",
    "“The performance of the PBN on the segmentation task is both quantitatively and qualitatively comparable to that "
    "of ensembles”. Tested: the mean IoU is within 7 % of that of the ensemble, and the Brier score and ECE are no "
    "worse.",
)
FULL = Claim(
    cite.SUBNETWORKS,
    "section 4.4, figure 8",
    "“the standard VI model performs very poorly with a 40% degradation in performance”. Tested: the fully random "
    "network, from random weights and with the prior N(0, 1), loses at least 20 % of the plain network's mean IoU in "
    "twice the epochs.",
)
START = Claim(
    cite.OURS,
    "subnetworks-camvid",
    "The fully random network that starts from the trained network and has fitted prior scales keeps 95 % of the plain "
    "network's mean IoU.",
)
FAIR = Claim(
    cite.OURS,
    "subnetworks-camvid",
    "The 1 % network also keeps 95 % of the mean IoU of a plain network that has as many epochs in all.",
)
DOUBT = Claim(
    cite.SUBNETWORKS,
    "section 4.4, figure 9",
    "“the PBN-1% segmentation uncertainty is consistent with errors in the prediction and at class boundaries”. "
    "Tested: the entropy is higher at wrong pixels than at right ones, and at the edges of classes than inside.",
)
ENDS = Claim(
    cite.SUBNETWORKS,
    "section 4.4, figure 13",
    "“at low r_bayes < 5% … the highest magnitude gradients are near the network edges, both input and output”. "
    "Tested: the share of random weights is larger in the first block, and in the last block with the head, than "
    "between.",
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
    result, trained, _ = train_and_segment(job, size, task)
    metrics = result["metrics"]
    for number, name in enumerate(wanted["classes"]):
        if f"iou/{number}" in metrics:
            metrics[f"iou/{name}"] = metrics.pop(f"iou/{number}")
    metrics |= random_by_part(trained.predictor, first=1, last=2)
    return result


def _conclude(results: Results, size: Size) -> Outcome:
    def retains(claim: Claim, a: str, b: str, low: float, high: float) -> Any:
        return within(claim, ratios(results, "miou", a, b), low, high, f"mean IoU of {a} over that of {b}")

    verdicts = [
        retains(LOSS, _OURS, "deterministic", 0.95, _ALL),
        all_of(
            COMPARABLE,
            [retains(COMPARABLE, _OURS, "ensemble", 0.93, _ALL)]
            + [matches(results, COMPARABLE, m, _OURS, "ensemble", tests=2) for m in ("brier", "ece")],
        ),
        retains(FULL, _FULL, "deterministic", 0.0, 0.8),
        retains(START, "vi", "deterministic", 0.95, _ALL),
        retains(FAIR, _OURS, LONGER, 0.95, _ALL),
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
    rows = results_with_pictures(results, ("ensemble", _OURS, _FULL))
    if rows:
        figures["doubt"] = pictures(rows, len(classes))
    return Outcome(tables, verdicts, figures)


_CLASSES = [
    "sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist",
]  # fmt: skip

STUDY = Study(
    "subnetworks-camvid",
    "Sensitivity-guided subnetworks, figures 8, 9 and 13: segmentation of street scenes",
    (LOSS, COMPARABLE, FULL, START, FAIR, DOUBT, ENDS),
    {
        "smoke": Size(
            "Made-up scenes of 16x16 with three classes, 1 or 2 epochs, a tiny U-Net, an ensemble of 2.",
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
            "CamVid at 36x48 (the paper: Cityscapes at 256x512) and a U-Net of 8 to 64 channels (the paper: 64 to "
            "1024). The plain network has 12 epochs, and the variational networks that start from it have 12 more (the "
            "paper: 150 and 150; VI four times as many, here twice); so partly random networks and VI have twice the "
            "epochs of the plain network and of each ensemble member. There are no class weights, 1 mirrored draw a "
            "step (the paper: 5), and fitted prior scales for partly random networks.",
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
            "CamVid replaces Cityscapes. The learning rate falls as a cosine (the paper: it is halved on plateaus). VI "
            "has twice the epochs (the paper: four times). There are no class weights.",
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
    jobs_from_trained,
)
