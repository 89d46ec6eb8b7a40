"""How much should the KL weigh, and how large should scales be at first, so that few random weights say something?"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from leanbayes.bayesian import Bayesian
from leanbayes.lab.recipes import Budget
from leanbayes_papers.base import Claim, Experiment, Job, Outcome, Results, Size, Verdict
from leanbayes_papers.judge import all_of, beats, matches, summary
from leanbayes_papers.studies.pareto import task_with_unseen
from leanbayes_papers.training import measured

__all__ = ["EXPERIMENT", "median_scale"]

_RECIPES = {"partial 1 %": "partial", "last layer": "layers", "vi": "vi", "vdp": "vdp"}
_OURS = {name: f"{recipe}:kl_end=none" for name, recipe in _RECIPES.items()}
_LIGHT = {f"{name}, KL 0.01": f"{recipe}:kl_end=0.01" for name, recipe in _RECIPES.items()}
_SCALES = {f"partial 1 %, σ from {scale:g}": f"partial:init_scale={scale}" for scale in (0.001, 0.1)}
_METHODS = {"deterministic": "deterministic"} | _OURS | _LIGHT | _SCALES
_OOD = "ood/unseen/auroc"

Judge = Callable[..., Verdict]

_WEIGHED = "weighed by min(1, n/k), for n examples and k random weights,"
CALIBRATED = Claim("ours", "KL weight", f"{_WEIGHED} the KL makes networks better calibrated than by 0.01 (ECE)")
AS_GOOD = Claim("ours", "KL weight", f"{_WEIGHED} the KL makes networks no worse than by 0.01 (NLL)")
UNSEEN = Claim(
    "ours", "KL weight", f"{_WEIGHED} unseen images are told better than by 0.01 (out-of-distribution AUROC)"
)
START = Claim("ours", "KL weight", "for 1 %, scales that start at 0.01 are no worse than from 0.001 or 0.1 (NLL)")


def median_scale(bnn: Bayesian) -> float:
    """The standard deviation that half of the random weights exceed."""
    variances = [weight.random_variance().detach().flatten() for weight in bnn.weights().values()]
    return float(torch.cat(variances).sqrt().median())


def _run(job: Job, size: Size, folder: Path | None) -> dict[str, Any]:
    task = task_with_unseen(job.data, folder, size.counts, size.options["models"][job.data])
    found, trained = measured(job, size, task)
    if isinstance(trained.predictor, Bayesian):
        found["metrics"]["median σ"] = median_scale(trained.predictor)
    return found


def _conclude(results: Results, size: Size) -> Outcome:
    """Each method on each data set by its seeds: two data sets are too few to speak of others."""
    pairs = [(name, f"{name}, KL 0.01") for name in _OURS if name in size.methods]
    starts = [("partial 1 %", name) for name in _SCALES if name in size.methods]

    def judged(judge: Judge, claim: Claim, measure: str, some: list[tuple[str, str]]) -> Verdict:
        tests = len(some) * len(size.data)
        return all_of(
            claim, [judge(results, claim, measure, a, b, tests=tests, data=data) for data in size.data for a, b in some]
        )

    verdicts = [
        judged(beats, CALIBRATED, "ece", pairs),
        judged(matches, AS_GOOD, "nll", pairs),
        judged(beats, UNSEEN, _OOD, pairs),
        judged(matches, START, "nll", starts),
    ]
    measures = ("nll", "ece", "brier", "accuracy", _OOD, "entropy", "median σ", "random")
    return Outcome({data: summary(results, measures, data) for data in size.data}, verdicts)


EXPERIMENT = Experiment(
    "kl-weight",
    "the weight of the KL and the first size of scales, for few random weights and for all",
    (CALIBRATED, AS_GOOD, UNSEEN, START),
    {
        "smoke": Size(
            "8x8 digits, 200 images, 2 epochs, 1 % only",
            0.1,
            ("digits",),
            (),
            {name: spec for name, spec in _METHODS.items() if name.startswith("partial")},
            Budget(epochs=2, batch_size=50, lr=1e-2),
            seeds=1,
            samples=4,
            counts=(200, 50, 100),
            options={"models": {"digits": "mlp"}},
        ),
        "cpu": Size(
            "nothing of ours: a LeNet-5 on 2,000 images of Fashion-MNIST and a LeNet 300-100 on as many of MNIST, 20 "
            "epochs in all; the rule was chosen on other images (for validation) and other seeds (10 to 13)",
            10,
            ("fashion-mnist", "mnist"),
            ("fashion-mnist", "mnist"),
            _METHODS,
            Budget(epochs=20, batch_size=64, lr=2e-3, schedule="cosine"),
            seeds=5,
            samples=16,
            counts=(2000, 500, 1500),
            options={"models": {"fashion-mnist": "lenet5", "mnist": "lenet300"}},
        ),
        "paper": Size(
            "nothing of ours: the same networks on all images, 60 epochs",
            2000,
            ("fashion-mnist", "mnist"),
            ("fashion-mnist", "mnist"),
            _METHODS,
            Budget(epochs=60, batch_size=64, lr=2e-3, schedule="cosine"),
            seeds=5,
            samples=16,
            options={"models": {"fashion-mnist": "lenet5", "mnist": "lenet300"}},
        ),
    },
    _run,
    _conclude,
)
