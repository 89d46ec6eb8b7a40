"""Sensitivity-guided subnetworks, appendix H.3.1, figures 6, 12 and 15: the small ResNet on CIFAR-10 and SVHN."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leanbayes.evaluation.cost import count_parameters
from leanbayes.lab.data import Examples, Source, Task, load_data, shift
from leanbayes.lab.recipes import Budget, parse
from leanbayes.lab.statistics import weight_distance, weights_of
from leanbayes.prediction import Predictor
from leanbayes_papers import cite
from leanbayes_papers.figures import lines
from leanbayes_papers.placement import by_depth, random_by_part
from leanbayes_papers.studies.selection import Selected
from leanbayes_papers.study import Claim, Job, Outcome, Results, Size, Study, every_job
from leanbayes_papers.training import (
    as_tensors,
    digit_images,
    measure_test,
    partials,
    relative_flops,
    small_task,
    train,
)
from leanbayes_papers.verdicts import all_of, beats, exceeds, matches, summary, within

__all__ = ["STUDY"]

_PLAIN = {"deterministic": "deterministic", "ensemble": "ensemble", "vi": "vi"}
_OURS, _FIVE = "partial 1 %", "partial 5 %"
_COLD, _LONGER, _VI = "5 % from random weights", "5 % from random weights, twice the steps", "vi from random weights"
_OOD = "ood/unseen/auroc"

_ALIKE = (
    "The 1 % network has “competitive performance and uncertainty estimates compared to ensemble methods”. Tested: "
)
CIFAR = Claim(
    cite.SUBNETWORKS, "abstract, appendix H.3.1", _ALIKE + "accuracy, NLL and AUROC against SVHN, on CIFAR-10."
)
SVHN = Claim(
    cite.SUBNETWORKS, "abstract, appendix H.3.1", _ALIKE + "accuracy, NLL and AUROC against CIFAR-10, on SVHN."
)
LOW = Claim(
    cite.SUBNETWORKS,
    "section 4.3",
    "“very low percentages of Bayesian parameters exhibit competitive performance”. Tested: on CIFAR-10 the 1 % "
    "network is no worse than the 20 % network (accuracy, NLL).",
)
FASTER = Claim(
    cite.SUBNETWORKS,
    "section 4.3, figure 6",
    "On CIFAR-10 “PBN initialized from point estimates converges faster than both the randomly initialized 5% PBN … "
    "and the standard VI network” and “achieves lower NLL and higher accuracy”. Tested after as many Bayesian steps.",
)
CHEAPER = Claim(
    cite.SUBNETWORKS,
    "section 4.3, figure 6",
    "“all while requiring significantly less training cost”. Tested: on CIFAR-10 the NLL is better even if the network "
    "that starts from random weights also gets the steps that the plain network took.",
)
ENDS = Claim(
    cite.SUBNETWORKS,
    "section 4.4, figure 12",
    "“for ResNet18 with CIFAR-10, Bayesian weights are selected from layers near the input and output blocks”. Tested: "
    "in the 1 % network the share of random weights is larger up to the first block, and from the last block on, than "
    "between.",
)
NARROWER = Claim(
    cite.SUBNETWORKS,
    "appendix G, figure 15a",
    "“the ensemble's weight distribution is slightly narrower than that of the PBN-1%”. Tested: its standard "
    "deviation is smaller.",
)
SIMILAR = Claim(
    cite.SUBNETWORKS,
    "appendix G, figure 15b",
    "A KS statistic of 0.07 indicates “a high similarity” between the weights of the 1 % network and of the ensemble. "
    "Tested: the statistic exceeds that between a member and the other four by at most 0.02.",
)


@cache
def _sources(data: str, other: str, folder: Path | None) -> tuple[Source, Examples]:
    """Return known and unseen images; negatives are unseen for the small digits."""
    if data == "digits":
        source = digit_images()
        return source, shift(source.test, lambda x: 1 - x)
    known, unseen = load_data(data, folder), load_data(other, folder)
    return known, Examples(unseen.test.inputs, unseen.test.targets, known.preparation)


@cache
def _task(data: str, other: str, folder: Path | None, counts: tuple[int | None, ...]) -> Task:
    source, unseen = _sources(data, other, folder)
    return replace(small_task(source, counts, "small_resnet"), shifted={"unseen": as_tensors(unseen, counts[2])})


def _jobs(size: Size, seeds: Sequence[int]) -> list[Job]:
    """Return every job, and on the first data set also starts from random weights, with half of the epochs or all."""
    data, half = size.data[0], size.budget.epochs // 2
    cold, fully = (_cold(spec) for spec in (size.methods[_FIVE], size.methods.get("vi", "vi")))
    jobs = every_job(size, seeds)
    for seed in seeds:
        jobs.append(Job(_COLD, cold, data, seed, epochs=half))
        jobs.append(Job(_LONGER, cold, data, seed))
        jobs.append(Job(_VI, fully, data, seed, epochs=half))
    return jobs


def _cold(spec: str) -> str:
    """Return the same recipe with a start from random weights."""
    return spec if "pretrain=0" in spec else f"{spec}{',' if ':' in spec else ':'}pretrain=0"


def _run(job: Job, size: Size, folder: Path | None) -> dict[str, Any]:
    task = _task(job.data, size.data[-1 if job.data == size.data[0] else 0], folder, size.counts)
    recipe = parse(job.spec)
    if job.method in (_COLD, _LONGER):
        recipe = Selected(**vars(recipe))
    trained, run = train(job, size, task, recipe)
    parameters, flops = count_parameters(trained.predictor), relative_flops(recipe)
    metrics = measure_test(trained, size, task, job.seed)
    metrics |= {"parameters": parameters.trained, "random": parameters.scales}
    metrics |= random_by_part(trained.predictor, first=3, last=2)
    if flops is not None and job.epochs is None:
        metrics["flops"] = flops
    if job.method == "ensemble" and job.data == size.data[0]:
        ours, _ = train(replace(job, spec=size.methods[_OURS]), size, task)
        metrics |= _weights(trained.predictor, ours.predictor, size.options["weights"], job.seed)
    curve = [
        nll for stage, nll in run.curve if stage != "plain"
    ]  # the plain stage may belong to a network that only chose the weights
    return {"metrics": metrics, "seconds": {"train": trained.seconds}, "curve": curve}


def _weights(ensemble: nn.Module, ours: nn.Module, most: int, seed: int) -> dict[str, float]:
    """Return how far the weights of the 1 % network are from an ensemble's, and its first member's from the others'.

    Mixtures are fitted to at most ``most`` weights.
    """
    assert isinstance(ensemble, Predictor)
    partly_random = weights_of(ours, generator=torch.Generator().manual_seed(seed))
    members = [weights_of(member) for member in ensemble.parts().values()]
    together, others = torch.cat(members), torch.cat(members[1:])
    return {
        "distance of 1 %": weight_distance(partly_random, together, most=most, seed=seed).statistic,
        "distance of a member": weight_distance(members[0], others, most=most, seed=seed).statistic,
        "deviation of 1 %": partly_random.double().std().item(),
        "deviation of the ensemble": together.double().std().item(),
    }


def _conclude(results: Results, size: Size) -> Outcome:
    first, last = size.data[0], size.data[-1]
    both = ("nll", "accuracy")
    verdicts = [
        *(
            all_of(claim, [matches(results, claim, m, _OURS, "ensemble", data=data, tests=3) for m in (*both, _OOD)])
            for claim, data in ((CIFAR, first), (SVHN, last))
        ),
        all_of(LOW, [matches(results, LOW, m, _OURS, "partial 20 %", data=first, tests=2) for m in both]),
        all_of(
            FASTER,
            [beats(results, FASTER, m, _FIVE, other, data=first, tests=4) for other in (_COLD, _VI) for m in both],
        ),
        beats(results, CHEAPER, "nll", _FIVE, _LONGER, data=first),
        all_of(
            ENDS,
            [
                exceeds(_only(results, first), ENDS, _OURS, f"random@{end}", "random@middle", margin=0.002, tests=2)
                for end in ("input", "output")
            ],
        ),
        exceeds(
            _only(results, first), NARROWER, "ensemble", "deviation of 1 %", "deviation of the ensemble", margin=1e-4
        ),
        within(SIMILAR, _further(results, first), -1, 0.02, "distance of the 1 % network minus that of a member"),
    ]
    parts = (f"random@part {number}" for number in range(1, 8))
    measures = (
        "accuracy", "nll", "brier", "ece", "entropy", _OOD, "flops", "parameters", "random", "random@input",
        "random@middle", "random@output", *parts, "distance of 1 %", "distance of a member", "deviation of 1 %",
        "deviation of the ensemble",
    )  # fmt: skip
    figures = {}
    for name in size.data:
        depths = by_depth(results, name)
        if depths:
            figures[f"sparsity-{name}"] = lines(depths, "part of the network, from the input on", "sparsity")
    curves = {name: _curve(results, name, first) for name in (_FIVE, _COLD, _VI)}
    figures["start"] = lines({n: c for n, c in curves.items() if c}, "epoch of the Bayesian stage", "validation NLL")
    return Outcome({name: summary(results, measures, name) for name in size.data}, verdicts, figures)


def _only(results: Results, data: str) -> Results:
    return Results([(job, result) for job, result in results.runs if job.data == data])


def _further(results: Results, data: str) -> list[float]:
    ours, member = (results.column(f"distance of {name}", "ensemble", data) for name in ("1 %", "a member"))
    return [ours[key] - member[key] for key in ours if key in member]


def _curve(results: Results, method: str, data: str) -> dict[float, list[float]]:
    curve: dict[float, list[float]] = {}
    for job, result in results.runs:
        if job.method == method and job.data == data:
            for epoch, nll in enumerate(result.get("curve", ()), start=1):
                curve.setdefault(float(epoch), []).append(nll)
    return curve


STUDY = Study(
    "subnetworks-resnet",
    "Sensitivity-guided subnetworks, appendix H.3.1, figures 6, 12 and 15: the small ResNet on CIFAR-10 and SVHN",
    (CIFAR, SVHN, LOW, FASTER, CHEAPER, ENDS, NARROWER, SIMILAR),
    {
        "smoke": Size(
            "80 digits of 8x8, their negatives as unseen images, 2 epochs, an ensemble of 2.",
            0.1,
            ("digits",),
            (),
            {"ensemble": "ensemble:members=2", **partials([0.01, 0.05])},
            Budget(epochs=2, batch_size=40, lr=1e-2),
            seeds=1,
            samples=4,
            counts=(80, 20, 40),
            options={"weights": 1000},
        ),
        "cpu": Size(
            "3,000 images of each data set (the paper: 50,000 and 73,257); those of SVHN are 5,000 of its test "
            "images, divided into three sets. Every method has 10 epochs in all (the paper: 50 after 50 of the plain "
            "network), 1 mirrored draw a step (the paper: 5), and fitted prior scales (the paper: N(0, 1)). Figures "
            "6, 12 and 15 of the paper have ResNet-18. The last block of the small ResNet works on single pixels, so "
            "that 8 of the 9 weights of its kernels only meet padding.",
            14,
            ("cifar10", "svhn-test"),
            ("cifar10", "svhn-test"),
            _PLAIN | partials([0.01, 0.05, 0.2]),
            Budget(epochs=10, batch_size=50, lr=5e-3, schedule="cosine"),
            seeds=3,
            samples=8,
            counts=(3000, 400, 1000),
            options={"weights": 20_000},
        ),
        "paper": Size(
            "Every method has 100 epochs in all. Figures 6, 12 and 15 of the paper have ResNet-18.",
            20_000,
            ("cifar10", "svhn"),
            ("cifar10", "svhn"),
            {**_PLAIN, "vi": "vi:pretrain=0,prior=normal,kl_start=0.2,kl_end=0.01,draws=5"}
            | partials(
                [0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95],
                "prior=normal,kl_start=0.2,kl_end=0.01,draws=5",
            ),
            Budget(epochs=100, batch_size=50, optimizer="sgd", lr=0.01, weight_decay=1e-5),
            seeds=3,
            samples=5,
            options={"weights": 100_000},
        ),
    },
    _run,
    _conclude,
    _jobs,
)
