"""VDP++, section 4 and figure 5: a small vision transformer (ViT) on MNIST, under noise and pruned."""

from functools import cache, partial
from pathlib import Path
from typing import Any

from leanbayes.lab.data import Task, load_data
from leanbayes.lab.models import vit
from leanbayes.lab.recipes import Budget
from leanbayes_papers import cite
from leanbayes_papers.figures import lines
from leanbayes_papers.noise import SNRS
from leanbayes_papers.pruning import FRACTIONS
from leanbayes_papers.study import Claim, Job, Outcome, Results, Size, Study
from leanbayes_papers.training import digit_images, percent, small_task, train_and_measure
from leanbayes_papers.vdp_measures import (
    POINT,
    TESTS,
    by_noise,
    by_pruning,
    falls,
    keeps,
    recipes,
    under_noise,
    when_pruned,
)
from leanbayes_papers.verdicts import all_of, beats, summary

__all__ = ["STUDY"]

_PLAIN, _VDP = "deterministic", "vdp"

SMALL = Claim(
    cite.VDP,
    "section 4",
    "“we trained a small ViT on MNIST and confirmed noise robustness using the variance vs SNR experiment”. "
    "Tested: the variance falls as the SNR rises (Spearman's correlation, p < 0.01).",
)
ROBUST = Claim(
    cite.VDP,
    "figure 5b",
    "“the VDP retains its … noise robustness properties” in a ViT. Tested: it is more accurate than the plain network "
    "at -6 dB.",
)
COMPRESSES = Claim(
    cite.VDP,
    "figure 5a",
    "“the VDP retains its self-compressing … properties” in a ViT. Tested: with 90 % of the weights pruned it "
    "loses at most a point of accuracy, and less than the plain network.",
)


@cache
def _task(data: str, folder: Path | None, counts: tuple[int | None, ...], shape: tuple[int, ...]) -> Task:
    source = digit_images() if data == "digits" else load_data(data, folder)
    side = source.train[0][0].shape[-1]
    patch, width, depth, heads = shape
    return small_task(source, counts, partial(vit, 1, 10, (side, side), patch, width, depth, heads))


def _run(job: Job, size: Size, folder: Path | None) -> dict[str, Any]:
    wanted = size.options
    task = _task(job.data, folder, size.counts, tuple(wanted["patch, width, depth, heads"]))
    result, trained = train_and_measure(job, size, task)
    x, y = (part[: wanted["images"]] for part in task.test[:])
    result["metrics"] |= under_noise(trained.predictor, x, y, size.samples)
    result["metrics"] |= when_pruned(trained.predictor, x, y, size.samples, wanted["fractions"])
    return result


def _conclude(results: Results, size: Size) -> Outcome:
    beat = partial(beats, results, a=_VDP, b=_PLAIN, tests=TESTS)
    verdicts = [
        falls(results, SMALL, _VDP),
        beat(ROBUST, f"accuracy@{min(SNRS):g} dB"),
        all_of(
            COMPRESSES,
            [
                keeps(results, COMPRESSES, _VDP),
                beat(COMPRESSES, "lost at 90 %", direction="low", margin=POINT),
            ],
        ),
    ]
    fractions = size.options["fractions"]
    measures = [
        "accuracy", "nll", "brier", "ece",
        *(f"{measure}@{snr:g} dB" for measure in ("accuracy", "variance") for snr in SNRS),
        *(f"accuracy@{percent(f)} pruned{by}" for by in ("", " by ratio") for f in fractions),
    ]  # fmt: skip
    figures = {
        "variance": lines(by_noise(results, "variance"), "SNR, dB", "output variance, at -6 dB = 1"),
        "noise": lines(by_noise(results, "accuracy"), "SNR, dB", "accuracy"),
        "pruning": lines(by_pruning(results, fractions), "% of the weights pruned", "accuracy"),
    }
    return Outcome({"ViT": summary(results, measures)}, verdicts, figures)


STUDY = Study(
    "vdp-vit",
    "VDP++, section 4 and figure 5: a small vision transformer on MNIST, noise and pruning",
    (SMALL, ROBUST, COMPRESSES),
    {
        "smoke": Size(
            "100 digits of 8x8, 1 epoch, one block.",
            0.1,
            ("digits",),
            (),
            {_PLAIN: _PLAIN} | recipes(_VDP, {"": 0.01}),
            Budget(epochs=1, batch_size=50, lr=3e-3),
            seeds=1,
            samples=4,
            counts=(100, 50, 60),
            options={"patch, width, depth, heads": [4, 8, 1, 2], "images": 20, "fractions": [0.0, 0.9]},
        ),
        "cpu": Size(
            "4,000 images of MNIST replace ImageNet-1k; 10 epochs and 2 blocks of width 32 (ViT-S/16 of the paper: 12 "
            "blocks of width 384). The KL weight is 0.01, the prior scale of each tensor is fitted (the paper: N(0, "
            "1)), and drawn outputs are scored by cross-entropy.",
            10,
            ("mnist",),
            ("mnist",),
            {_PLAIN: _PLAIN} | recipes(_VDP, {"": 0.01}),
            Budget(epochs=10, batch_size=64, lr=3e-3, schedule="cosine", clip=1.0),
            seeds=5,
            samples=16,
            counts=(4000, 1000, 2000),
            options={
                "patch, width, depth, heads": [7, 32, 2, 4],
                "images": 1000,
                "fractions": [0.0, 0.5, 0.75, 0.9, 0.95],
            },
        ),
        "paper": Size(
            "ImageNet-1k is left out. MNIST has 50 epochs and 6 blocks of width 128, because the paper does not say "
            "how small its ViT on MNIST is.",
            20_000,
            ("mnist",),
            ("mnist",),
            {_PLAIN: _PLAIN} | recipes(_VDP, {"": 0.01}, "normal"),
            Budget(epochs=50, batch_size=128, lr=1e-3, schedule="cosine", clip=1.0),
            seeds=5,
            samples=32,
            options={"patch, width, depth, heads": [4, 128, 6, 4], "images": 10_000, "fractions": list(FRACTIONS)},
        ),
    },
    _run,
    _conclude,
)
