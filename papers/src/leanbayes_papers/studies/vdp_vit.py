"""002, section 4 and figure 5: a vision transformer by VDP++, under noise and pruned; a small one on MNIST."""

from functools import cache, partial
from pathlib import Path
from typing import Any

from leanbayes.evaluation.pruning import FRACTIONS
from leanbayes.lab.data import Task, load_data
from leanbayes.lab.models import vit
from leanbayes.lab.recipes import Budget
from leanbayes_papers.base import Claim, Experiment, Job, Outcome, Results, Size
from leanbayes_papers.figures import lines
from leanbayes_papers.judge import all_of, beats, summary
from leanbayes_papers.noise import SNRS
from leanbayes_papers.training import digit_images, measured, percent, small_task
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

__all__ = ["EXPERIMENT"]

_PLAIN, _VDP = "deterministic", "vdp"

SMALL = Claim(
    "002",
    "section 4",
    "“we trained a small ViT on MNIST and confirmed noise robustness using the variance vs SNR experiment”: the "
    "variance falls as the SNR rises (Spearman, p < 0.01)",
)
ROBUST = Claim(
    "002",
    "figure 5b",
    "“the VDP retains its … noise robustness properties” in a ViT: a higher accuracy than the plain network's at -6 dB",
)
COMPRESSES = Claim(
    "002",
    "figure 5a",
    "“the VDP retains its self-compressing … properties” in a ViT: at most a point of accuracy is lost with 90 % "
    "pruned, and less than the plain network loses",
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
    found, trained = measured(job, size, task)
    x, y = (part[: wanted["images"]] for part in task.test[:])
    found["metrics"] |= under_noise(trained.predictor, x, y, size.samples)
    found["metrics"] |= when_pruned(trained.predictor, x, y, size.samples, wanted["fractions"])
    return found


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


EXPERIMENT = Experiment(
    "vdp-vit",
    "002, section 4 and figure 5: a small ViT on MNIST, noise and pruning",
    (SMALL, ROBUST, COMPRESSES),
    {
        "smoke": Size(
            "8x8 digits, 100 images, 1 epoch, one block",
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
            "MNIST for ImageNet-1k, 4,000 images, 10 epochs and 2 blocks of width 32 (002's ViT-S/16: 12 of 384); KL "
            "weight 0.01, each tensor's prior scale fitted (002: N(0, 1)), drawn outputs scored by cross-entropy",
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
            "ImageNet-1k is left out: MNIST, 50 epochs and 6 blocks of width 128, as 002 does not say how small "
            "its ViT on MNIST is",
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
