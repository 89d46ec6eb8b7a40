"""Which weights should be random, and where should they start? With sensitivity-guided subnetworks, figure 6."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn

from leanbayes.errors import UnknownName
from leanbayes.evaluation.cost import count_parameters
from leanbayes.lab.data import Task, load_data
from leanbayes.lab.recipes import Budget, Run, parse
from leanbayes.lab.recipes.base import option
from leanbayes.lab.recipes.partial import Partial
from leanbayes.subspace import Subspace, random_k, top_k
from leanbayes_papers import cite
from leanbayes_papers.figures import lines
from leanbayes_papers.study import Claim, Job, Outcome, Results, Size, Study
from leanbayes_papers.training import digit_images, measure_test, percent, small_task, train
from leanbayes_papers.verdicts import all_of, beats, summary

__all__ = ["STUDY", "Selected"]

_WAYS = ("sensitivity", "magnitude", "random")
_START = 0.05  # the rate in figure 6 of sensitivity-guided subnetworks
_FROM_RANDOM, _LONGER = "5 % from random weights", "5 % from random weights, twice the steps"
_VI = "vi from random weights"

RANDOM = Claim(
    cite.OURS, "selection", "At equal k, random weights chosen by sensitivity beat those chosen by chance (NLL)."
)
MAGNITUDE = Claim(
    cite.OURS, "selection", "At equal k, random weights chosen by sensitivity beat those chosen by size (NLL)."
)
FASTER = Claim(
    cite.SUBNETWORKS,
    "section 4.3, figure 6",
    "“PBN initialized from point estimates converges faster than both the randomly initialized 5% PBN … and the "
    "standard VI network” and “achieves lower NLL and higher accuracy”. Tested after as many Bayesian steps.",
)
CHEAPER = Claim(
    cite.SUBNETWORKS,
    "section 4.3, figure 6",
    "“all while requiring significantly less training cost”. Tested: the NLL is better even if the network that starts "
    "from random weights also gets the steps that the plain network took.",
)


@dataclass(frozen=True)
class Selected(Partial):
    """A recipe for a partly random network whose random weights are chosen by another score.

    If the network starts from random weights, a plain network is trained only to choose the weights by. Figure 6 of
    sensitivity-guided subnetworks does so too: both of its networks have the same random weights.
    """

    name = "selected"
    by: str = option("sensitivity", "What chooses the random weights: sensitivity, magnitude or random.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.by not in _WAYS:
            raise UnknownName.of("way to choose weights", self.by, _WAYS)

    def subspace(self, model: nn.Module, task: Task, run: Run) -> Subspace:
        """Choose the weights by sensitivity, size or chance."""
        if self.by == "random":
            return random_k(self.rate, seed=run.seed)
        chooser = model if self.pretrain else run.plain(task, run.budget.epochs)
        if self.by == "magnitude":
            return top_k({name: p.detach().abs() for name, p in chooser.named_parameters()}, rate=self.rate)
        return super().subspace(chooser, task, run)


@cache
def _task(data: str, folder: Path | None, counts: tuple[int | None, ...]) -> Task:
    source = digit_images() if data == "digits" else load_data(data, folder)
    return small_task(source, counts, "lenet300")


def _name(way: str, rate: float) -> str:
    return f"{percent(rate)} by {way}"


def _jobs(size: Size, seeds: Sequence[int]) -> list[Job]:
    """Return the jobs by rate and way to choose, and those from random weights with the Bayesian epochs or with all."""
    (data,), half = size.data, size.budget.epochs // 2
    jobs = []
    for seed in seeds:
        for rate in size.options["rates"]:
            jobs += [Job(_name(way, rate), f"partial:rate={rate}", data, seed, variant=way) for way in _WAYS]
        cold = f"partial:rate={_START},pretrain=0"
        jobs.append(Job(_FROM_RANDOM, cold, data, seed, epochs=half, variant="sensitivity"))
        jobs.append(Job(_LONGER, cold, data, seed, variant="sensitivity"))
        jobs += [Job(name, spec, data, seed, epochs=half) for name, spec in size.methods.items()]
    return jobs


def _run(job: Job, size: Size, folder: Path | None) -> dict[str, Any]:
    task, recipe = _task(job.data, folder, size.counts), parse(job.spec)
    if job.variant:
        assert isinstance(recipe, Partial)
        recipe = Selected(**vars(recipe), by=job.variant)
    trained, run = train(job, size, task, recipe)
    metrics = measure_test(trained, size, task, job.seed) | {"random": count_parameters(trained.predictor).scales}
    curve = [nll for stage, nll in run.curve if stage != "plain"]
    return {"metrics": metrics, "seconds": {"train": trained.seconds}, "curve": curve}


def _conclude(results: Results, size: Size) -> Outcome:
    rates = size.options["rates"]
    ours = _name("sensitivity", _START)
    colder = [
        name for name in (_FROM_RANDOM, _VI) if name in results.methods() or name in (*size.methods, _FROM_RANDOM)
    ]
    verdicts = [
        all_of(
            claim,
            [
                beats(
                    results, claim, "nll", _name("sensitivity", rate), _name(way, rate), margin=0.002, tests=len(rates)
                )
                for rate in rates
            ],
        )
        for claim, way in ((RANDOM, "random"), (MAGNITUDE, "magnitude"))
    ]
    parts = [
        beats(results, FASTER, measure, ours, other, tests=2 * len(colder))
        for other in colder
        for measure in ("nll", "accuracy")
    ]
    verdicts += [all_of(FASTER, parts), beats(results, CHEAPER, "nll", ours, _LONGER)]
    drawn = {way: {r: list(results.column("nll", _name(way, r)).values()) for r in rates} for way in _WAYS}
    figures = {"selection": lines(drawn, "share of random weights", "NLL", log=True)}
    curves = {name: _curve(results, name) for name in (ours, *colder)}
    figures["start"] = lines(curves, "epoch of the Bayesian stage", "validation NLL")
    return Outcome({"by selection": summary(results, ("nll", "accuracy", "brier", "ece", "random"))}, verdicts, figures)


def _curve(results: Results, method: str) -> dict[float, list[float]]:
    curve: dict[float, list[float]] = {}
    for job, result in results.runs:
        for epoch, nll in enumerate(result["curve"] if job.method == method else (), start=1):
            curve.setdefault(float(epoch), []).append(nll)
    return curve


_METHODS = {_VI: "vi:pretrain=0"}

STUDY = Study(
    "selection",
    "Sensitivity against random and magnitude selection; trained against random start (sensitivity-guided "
    "subnetworks, figure 6)",
    (RANDOM, MAGNITUDE, FASTER, CHEAPER),
    {
        "smoke": Size(
            "200 digits of 8x8, 2 epochs.",
            0.1,
            ("digits",),
            (),
            _METHODS,
            Budget(epochs=2, batch_size=50, optimizer="sgd", lr=0.05),
            seeds=1,
            samples=4,
            counts=(200, 50, 100),
            options={"rates": [0.05]},
        ),
        "cpu": Size(
            "LeNet 300-100 on 4,000 images of MNIST (figure 6 of the paper: ResNet-18 on CIFAR-10), 10 epochs of the "
            "plain network and 10 Bayesian ones, 1 mirrored draw a step. The KL weight is min(1, n/k), and 0.01 if all "
            "weights are random.",
            9,
            ("mnist",),
            ("mnist",),
            _METHODS,
            Budget(epochs=20, batch_size=50, optimizer="sgd", lr=0.01, weight_decay=1e-5),
            seeds=5,
            samples=16,
            counts=(4000, 1000, 4000),
            options={"rates": [0.01, 0.05, 0.2]},
        ),
        "paper": Size(
            "LeNet 300-100 on all of MNIST (figure 6 of the paper: ResNet-18 on CIFAR-10).",
            2500,
            ("mnist",),
            ("mnist",),
            _METHODS,
            Budget(epochs=100, batch_size=50, optimizer="sgd", lr=0.01, weight_decay=1e-5),
            seeds=5,
            samples=16,
            options={"rates": [0.001, 0.01, 0.05, 0.2, 0.5]},
        ),
    },
    _run,
    _conclude,
    _jobs,
)
