"""Combinations that no paper has: few random weights without samples, inside a sparse network, or with Radial noise."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from leanbayes.bayesian import Bayesian
from leanbayes.evaluation.cost import count_parameters
from leanbayes.lab.data import Task
from leanbayes.lab.recipes import Budget, Recipe, Run, parse
from leanbayes.lab.recipes.base import option
from leanbayes.lab.recipes.partial import Partial
from leanbayes.lab.recipes.radial import RadialRecipe
from leanbayes.lab.recipes.rigl import RigL
from leanbayes.subspace import Subspace
from leanbayes_papers.base import Claim, Experiment, Job, Outcome, Results, Size
from leanbayes_papers.judge import all_of, beats, matches, summary
from leanbayes_papers.studies.pareto import task_with_unseen
from leanbayes_papers.training import judged, train

__all__ = ["EXPERIMENT", "RadialPartial", "SparsePartial"]

_OOD = "ood/unseen/auroc"
_QUALITY = ("nll", "brier", "ece", _OOD)
_ONE, _TEN = "partial 1 %", "partial 10 %"
_SPARSE, _RADIAL = "partial 10 % of rigl", "radial partial 1 %"
_SSVI, _RIGL, _ALL_RADIAL = "ssvi", "rigl", "radial"
_PARENTS = {
    "deterministic": "deterministic",
    _ONE: "partial",
    _TEN: "partial:rate=0.1",
    _ALL_RADIAL: "radial",
}

_OF = "(NLL, Brier, ECE, out-of-distribution AUROC)"
ONE_PASS_1 = Claim(
    "ours", "combined", f"with 1 % of the weights random, one pass of moments matches 16 samples and 32 {_OF}"
)
ONE_PASS_10 = Claim(
    "ours", "combined", f"with 10 % of the weights random, one pass of moments matches 16 samples and 32 {_OF}"
)
SPARSE_ALL = Claim(
    "ours", "combined", f"in a sparse network, 10 % of what is stored random matches all of it random (SSVI) {_OF}"
)
SPARSE_DENSE = Claim(
    "ours", "combined", f"10 % of a sparse network's weights random matches 10 % of a dense one's {_OF}"
)
SPARSE_PLAIN = Claim("ours", "combined", "10 % random weights make a sparse network better than it is without (NLL)")
RADIAL_ALL = Claim("ours", "combined", f"Radial noise in 1 % of the weights matches Radial noise in all {_OF}")
RADIAL_NORMAL = Claim("ours", "combined", f"in 1 % of the weights, Radial noise matches Normal noise {_OF}")


@dataclass(frozen=True)
class RadialPartial(RadialRecipe):
    """Radial noise in the most sensitive weights."""

    name = "radial partial"
    rate: float = option(0.01, "share of the weights that is random")

    def subspace(self, model: nn.Module, task: Task, run: Run) -> Subspace:
        """As `Partial`."""
        return Partial(rate=self.rate).subspace(model, task, run)


@dataclass(frozen=True)
class SparsePartial(Recipe):
    """A subnetwork of a subnetwork: a sparse network whose weights move, then a part of those that are there is random.

    A part cannot move, so the sparse network is trained first, for half of the epochs, as RigL.
    """

    name = "sparse partial"
    rate: float = option(0.1, "share of the stored weights that is random")
    density: float = option(0.2, "share of the weights that is stored")
    pretrain: float = option(0.5, "share of the epochs for the sparse network")

    def train(self, task: Task, run: Run) -> nn.Module:
        """RigL, the choice of weights, and the ELBO."""
        first, rest = (
            replace(run, budget=replace(run.budget, epochs=epochs), seconds=0.0) for epochs in run.share(self.pretrain)
        )
        model = RigL(density=self.density).train(task, first)
        bnn = Partial(rate=self.rate, pretrain=0.0).train(replace(task, model=lambda: model), rest)
        run.seconds += first.seconds + rest.seconds
        return bnn


def _jobs(size: Size, seeds: Sequence[int]) -> list[Job]:
    """The parents, and their combinations: "sparse" and "radial"."""
    (data,), density = size.data, size.options["density"]
    parents = dict(size.methods) | {_SSVI: f"ssvi:density={density}", _RIGL: f"rigl:density={density}"}
    jobs = []
    for seed in seeds:
        jobs += [Job(method, spec, data, seed) for method, spec in parents.items()]
        jobs.append(Job(_SPARSE, "partial:rate=0.1", data, seed, variant="sparse"))
        jobs.append(Job(_RADIAL, "partial:rate=0.01", data, seed, variant="radial"))
    return jobs


def _recipe(job: Job, size: Size) -> Recipe:
    recipe = parse(job.spec)
    if not job.variant:
        return recipe
    assert isinstance(recipe, Partial)
    if job.variant == "sparse":
        return SparsePartial(rate=recipe.rate, density=size.options["density"])
    return RadialPartial(rate=recipe.rate)


def _run(job: Job, size: Size, folder: Path | None) -> dict[str, Any]:
    """Partial networks predict in three ways: with samples, with more of them, and in one pass."""
    task = task_with_unseen(job.data, folder, size.counts, size.options["model"])
    trained, _ = train(job, size, task, _recipe(job, size))
    metrics = judged(trained, size, task, job.seed) | {"random": count_parameters(trained.predictor).scales}
    net, more = trained.predictor, size.options["more"]
    if isinstance(net, Bayesian) and job.spec.startswith("partial"):
        found = judged(trained, replace(size, samples=more), task, job.seed)
        metrics |= {f"{m}@{more} draws": found[m] for m in _QUALITY}
        net.propagate = "moments"
        found = judged(trained, size, task, job.seed)
        metrics |= {f"{m}@moments": found[m] for m in _QUALITY}
    return {"metrics": metrics, "seconds": {"train": trained.seconds}}


def _one_pass(results: Results, claim: Claim, method: str, more: int) -> Any:
    """Ways of predicting with the same networks, as if they were methods."""
    ways = {"samples": "", f"{more} samples": f"@{more} draws", "one pass": "@moments"}
    apart = Results(
        [
            (replace(job, method=way), {"metrics": {m: result["metrics"][m + suffix] for m in _QUALITY}})
            for job, result in results.found
            if job.method == method
            for way, suffix in ways.items()
        ]
    )
    others = list(ways)[:2]
    return all_of(
        claim,
        [
            matches(apart, claim, m, "one pass", other, tests=len(others) * len(_QUALITY))
            for m in _QUALITY
            for other in others
        ],
    )


def _alike(results: Results, claim: Claim, a: str, b: str) -> Any:
    return all_of(claim, [matches(results, claim, m, a, b, tests=len(_QUALITY)) for m in _QUALITY])


def _conclude(results: Results, size: Size) -> Outcome:
    more = size.options["more"]
    verdicts = [
        _one_pass(results, ONE_PASS_1, _ONE, more),
        _one_pass(results, ONE_PASS_10, _TEN, more),
        _alike(results, SPARSE_ALL, _SPARSE, _SSVI),
        _alike(results, SPARSE_DENSE, _SPARSE, _TEN),
        beats(results, SPARSE_PLAIN, "nll", _SPARSE, _RIGL),
        _alike(results, RADIAL_ALL, _RADIAL, _ALL_RADIAL),
        _alike(results, RADIAL_NORMAL, _RADIAL, _ONE),
    ]
    measures = [
        *("nll", "brier", "ece", "accuracy", _OOD, "entropy", "random"),
        *(f"{m}@{way}" for m in _QUALITY for way in (f"{more} draws", "moments")),
    ]
    return Outcome({"combinations": summary(results, measures)}, verdicts)


def _size(scaled: str, minutes: float, **settings: Any) -> Size:
    chosen: dict[str, Any] = {
        "data": ("fashion-mnist",), "needs": ("fashion-mnist", "mnist"), "methods": _PARENTS, "seeds": 5, "samples": 16,
        "options": {"model": "lenet5", "density": 0.2, "more": 32},
    }  # fmt: skip
    return Size(scaled, minutes, **(chosen | settings))


EXPERIMENT = Experiment(
    "combined",
    "beyond the papers: one pass against samples, a random part of a sparse network, a part with Radial noise",
    (ONE_PASS_1, ONE_PASS_10, SPARSE_ALL, SPARSE_DENSE, SPARSE_PLAIN, RADIAL_ALL, RADIAL_NORMAL),
    {
        "smoke": _size(
            "8x8 digits for Fashion-MNIST, their negatives for MNIST, 120 images, 2 epochs, LeNet 300-100",
            0.1,
            data=("digits",),
            needs=(),
            methods={_ONE: _PARENTS[_ONE]},
            budget=Budget(epochs=2, batch_size=40, lr=1e-2),
            seeds=1,
            samples=4,
            counts=(120, 40, 100),
            options={"model": "lenet300", "density": 0.2, "more": 8},
        ),
        "cpu": _size(
            "a LeNet-5 on 2,000 images of Fashion-MNIST, 20 epochs in all for each network",
            9,
            budget=Budget(epochs=20, batch_size=64, lr=2e-3, schedule="cosine"),
            counts=(2000, 500, 1500),
        ),
        "paper": _size(
            "nothing of ours: a LeNet-5 on all of Fashion-MNIST, 60 epochs in all for each network",
            500,
            budget=Budget(epochs=60, batch_size=64, lr=2e-3, schedule="cosine"),
        ),
    },
    _run,
    _conclude,
    _jobs,
)
