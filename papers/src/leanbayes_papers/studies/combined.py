"""Combinations that no paper has: few random weights without draws, inside a sparse network, or with Radial noise."""

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
from leanbayes_papers import cite
from leanbayes_papers.studies.pareto import task_with_unseen
from leanbayes_papers.study import Claim, Job, Outcome, Results, Size, Study
from leanbayes_papers.training import measure_test, train
from leanbayes_papers.verdicts import all_of, beats, matches, summary

__all__ = ["STUDY", "RadialPartial", "SparsePartial"]

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

_OF = "(NLL, Brier score, ECE, out-of-distribution AUROC)."
ONE_PASS_1 = Claim(cite.OURS, "combined", f"In the 1 % network, one pass of moments matches 16 and 32 draws {_OF}")
ONE_PASS_10 = Claim(cite.OURS, "combined", f"In the 10 % network, one pass of moments matches 16 and 32 draws {_OF}")
SPARSE_ALL = Claim(
    cite.OURS,
    "combined",
    f"In a sparse network, 10 % random among the stored weights match all of them random (SSVI) {_OF}",
)
SPARSE_DENSE = Claim(
    cite.OURS, "combined", f"10 % random weights in a sparse network match 10 % random weights in a dense one {_OF}"
)
SPARSE_PLAIN = Claim(cite.OURS, "combined", "10 % random weights improve the NLL of a sparse network.")
RADIAL_ALL = Claim(
    cite.OURS, "combined", f"Radial noise in 1 % of the weights matches Radial noise in all of them {_OF}"
)
RADIAL_NORMAL = Claim(cite.OURS, "combined", f"In 1 % of the weights, Radial noise matches Normal noise {_OF}")


@dataclass(frozen=True)
class RadialPartial(RadialRecipe):
    """A recipe with Radial noise in the most sensitive weights."""

    name = "radial partial"
    rate: float = option(0.01, "The share of the weights that is random.")

    def subspace(self, model: nn.Module, task: Task, run: Run) -> Subspace:
        """Choose the weights as `Partial` does."""
        return Partial(rate=self.rate).subspace(model, task, run)


@dataclass(frozen=True)
class SparsePartial(Recipe):
    """A recipe for a subnetwork of a subnetwork: a part of the weights of a sparse network is random.

    A random part cannot move. So RigL first trains the sparse network, whose weights do move, for half of the epochs.
    """

    name = "sparse partial"
    rate: float = option(0.1, "The share of the stored weights that is random.")
    density: float = option(0.2, "The share of the weights that is stored.")
    pretrain: float = option(0.5, "The share of the epochs in which RigL trains the sparse network.")

    def train(self, task: Task, run: Run) -> nn.Module:
        """Train with RigL, choose the weights, and train with the ELBO."""
        sparse, bayesian = (
            replace(run, budget=replace(run.budget, epochs=epochs), seconds=0.0) for epochs in run.share(self.pretrain)
        )
        model = RigL(density=self.density).train(task, sparse)
        bnn = Partial(rate=self.rate, pretrain=0.0).train(replace(task, model=lambda: model), bayesian)
        run.seconds += sparse.seconds + bayesian.seconds
        return bnn


def _jobs(size: Size, seeds: Sequence[int]) -> list[Job]:
    """Return the jobs of the parents and of their combinations, whose variants are "sparse" and "radial"."""
    (data,), density = size.data, size.options["density"]
    parents = dict(size.methods) | {_SSVI: f"ssvi:density={density},propagate=local", _RIGL: f"rigl:density={density}"}
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
    """Train a job. A partly random network predicts in three ways: with draws, with more draws, and in one pass."""
    task = task_with_unseen(job.data, folder, size.counts, size.options["model"])
    trained, _ = train(job, size, task, _recipe(job, size))
    metrics = measure_test(trained, size, task, job.seed) | {"random": count_parameters(trained.predictor).scales}
    net, more = trained.predictor, size.options["more"]
    if isinstance(net, Bayesian) and job.spec.startswith("partial"):
        with_more = measure_test(trained, replace(size, samples=more), task, job.seed)
        metrics |= {f"{m}@{more} draws": with_more[m] for m in _QUALITY}
        net.predict_by = "moments"
        in_one_pass = measure_test(trained, size, task, job.seed)
        metrics |= {f"{m}@moments": in_one_pass[m] for m in _QUALITY}
    return {"metrics": metrics, "seconds": {"train": trained.seconds}}


def _one_pass(results: Results, claim: Claim, method: str, more: int) -> Any:
    """Compare the ways of predicting with the same networks, as if they were methods."""
    ways = {"samples": "", f"{more} samples": f"@{more} draws", "one pass": "@moments"}
    apart = Results(
        [
            (replace(job, method=way), {"metrics": {m: result["metrics"][m + suffix] for m in _QUALITY}})
            for job, result in results.runs
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


STUDY = Study(
    "combined",
    "Beyond the papers: one pass against draws, a random part of a sparse network, a random part with Radial noise",
    (ONE_PASS_1, ONE_PASS_10, SPARSE_ALL, SPARSE_DENSE, SPARSE_PLAIN, RADIAL_ALL, RADIAL_NORMAL),
    {
        "smoke": _size(
            "120 digits of 8x8 replace Fashion-MNIST, and their negatives MNIST; 2 epochs, LeNet 300-100.",
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
            "A LeNet-5 on 2,000 images of Fashion-MNIST; each network has 20 epochs in all.",
            9,
            budget=Budget(epochs=20, batch_size=64, lr=2e-3, schedule="cosine"),
            counts=(2000, 500, 1500),
        ),
        "paper": _size(
            "Nothing is scaled down: a LeNet-5 on all of Fashion-MNIST; each network has 60 epochs in all.",
            500,
            budget=Budget(epochs=60, batch_size=64, lr=2e-3, schedule="cosine"),
        ),
    },
    _run,
    _conclude,
    _jobs,
)
