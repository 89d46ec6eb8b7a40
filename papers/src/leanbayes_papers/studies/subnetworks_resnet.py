"""001, appendix H.3.1, figures 6, 12 and 15: the small ResNet on CIFAR-10 and SVHN, each unseen by the other."""

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
from leanbayes_papers.base import Claim, Experiment, Job, Outcome, Results, Size, every_job
from leanbayes_papers.figures import lines
from leanbayes_papers.inside import by_depth, exceeds, random_by_part
from leanbayes_papers.judge import all_of, beats, matches, summary, within
from leanbayes_papers.studies.selection import Selected
from leanbayes_papers.training import (
    digit_images,
    judged,
    partials,
    relative_flops,
    small_task,
    tensors,
    train,
)

__all__ = ["EXPERIMENT"]

_PLAIN = {"deterministic": "deterministic", "ensemble": "ensemble", "vi": "vi"}
_OURS, _FIVE = "partial 1 %", "partial 5 %"
_COLD, _LONGER, _VI = "5 % from random weights", "5 % from random weights, twice the steps", "vi from random weights"
_OOD = "ood/unseen/auroc"

_ALIKE = (
    "with 1 % of the weights random “competitive performance and uncertainty estimates compared to ensemble methods” "
)
CIFAR = Claim("001", "abstract, appendix H.3.1", _ALIKE + "on CIFAR-10 (accuracy, NLL, AUROC against SVHN)")
SVHN = Claim("001", "abstract, appendix H.3.1", _ALIKE + "on SVHN (accuracy, NLL, AUROC against CIFAR-10)")
LOW = Claim(
    "001",
    "section 4.3",
    "“very low percentages of Bayesian parameters exhibit competitive performance”: 1 % is no worse than 20 % on "
    "CIFAR-10 (accuracy, NLL)",
)
FASTER = Claim(
    "001",
    "section 4.3, figure 6",
    "on CIFAR-10 “PBN initialized from point estimates converges faster than both the randomly initialized 5% PBN … "
    "and the standard VI network” and “achieves lower NLL and higher accuracy”, after as many Bayesian steps",
)
CHEAPER = Claim(
    "001",
    "section 4.3, figure 6",
    "“all while requiring significantly less training cost”: on CIFAR-10 better also where the random start has the "
    "steps that training the plain network took (NLL)",
)
ENDS = Claim(
    "001",
    "section 4.4, figure 12",
    "“for ResNet18 with CIFAR-10, Bayesian weights are selected from layers near the input and output blocks”: at 1 % "
    "more of the weights up to the first block, and from the last on, are random than of those between",
)
NARROWER = Claim(
    "001",
    "appendix G, figure 15a",
    "“the ensemble's weight distribution is slightly narrower than that of the PBN-1%”: a smaller deviation",
)
SIMILAR = Claim(
    "001",
    "appendix G, figure 15b",
    "a KS statistic of 0.07 indicates “a high similarity” of the weights of 1 % and of the ensemble: as near as a "
    "member is to the other four, to 0.02",
)


@cache
def _sources(data: str, other: str, folder: Path | None) -> tuple[Source, Examples]:
    """Known and unseen images; of the stand-in, negatives are the unseen ones."""
    if data == "digits":
        source = digit_images()
        return source, shift(source.test, lambda x: 1 - x)
    known, unseen = load_data(data, folder), load_data(other, folder)
    return known, Examples(unseen.test.inputs, unseen.test.targets, known.preparation)


@cache
def _task(data: str, other: str, folder: Path | None, counts: tuple[int | None, ...]) -> Task:
    source, unseen = _sources(data, other, folder)
    return replace(small_task(source, counts, "small_resnet"), shifted={"unseen": tensors(unseen, counts[2])})


def _jobs(size: Size, seeds: Sequence[int]) -> list[Job]:
    """Every method on all data; on the first also random starts, with the Bayesian epochs of the others or all."""
    data, half = size.data[0], size.budget.epochs // 2
    cold, fully = (_cold(spec) for spec in (size.methods[_FIVE], size.methods.get("vi", "vi")))
    jobs = every_job(size, seeds)
    for seed in seeds:
        jobs.append(Job(_COLD, cold, data, seed, epochs=half))
        jobs.append(Job(_LONGER, cold, data, seed))
        jobs.append(Job(_VI, fully, data, seed, epochs=half))
    return jobs


def _cold(spec: str) -> str:
    """The same recipe without a trained start."""
    return spec if "pretrain=0" in spec else f"{spec}{',' if ':' in spec else ':'}pretrain=0"


def _run(job: Job, size: Size, folder: Path | None) -> dict[str, Any]:
    task = _task(job.data, size.data[-1 if job.data == size.data[0] else 0], folder, size.counts)
    recipe = parse(job.spec)
    if job.method in (_COLD, _LONGER):
        recipe = Selected(**vars(recipe))
    trained, run = train(job, size, task, recipe)
    kept, flops = count_parameters(trained.predictor), relative_flops(recipe)
    metrics = judged(trained, size, task, job.seed) | {"parameters": kept.trained, "random": kept.scales}
    metrics |= random_by_part(trained.predictor, first=3, last=2)
    if flops is not None and job.epochs is None:
        metrics["flops"] = flops
    if job.method == "ensemble" and job.data == size.data[0]:
        ours, _ = train(replace(job, spec=size.methods[_OURS]), size, task)
        metrics |= _weights(trained.predictor, ours.predictor, size.options["weights"], job.seed)
    curve = [nll for stage, nll in run.curve if stage != "plain"]  # without those of a network that only chose weights
    return {"metrics": metrics, "seconds": {"train": trained.seconds}, "curve": curve}


def _weights(ensemble: nn.Module, ours: nn.Module, most: int, seed: int) -> dict[str, float]:
    """How far the weights of 1 % are from an ensemble's, and those of its first member from the others'.

    Mixtures are fitted to at most so many weights.
    """
    assert isinstance(ensemble, Predictor)
    own = weights_of(ours, generator=torch.Generator().manual_seed(seed))
    members = [weights_of(member) for member in ensemble.parts().values()]
    together, one, rest = torch.cat(members), members[0], torch.cat(members[1:])
    return {
        "distance of 1 %": weight_distance(own, together, most=most, seed=seed).statistic,
        "distance of a member": weight_distance(one, rest, most=most, seed=seed).statistic,
        "deviation of 1 %": own.double().std().item(),
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
        within(SIMILAR, _further(results, first), -1, 0.02, "distance of 1 %, less that of a member"),
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
    return Results([(job, result) for job, result in results.found if job.data == data])


def _further(results: Results, data: str) -> list[float]:
    ours, member = (results.column(f"distance of {name}", "ensemble", data) for name in ("1 %", "a member"))
    return [ours[key] - member[key] for key in ours if key in member]


def _curve(results: Results, method: str, data: str) -> dict[float, list[float]]:
    found: dict[float, list[float]] = {}
    for job, result in results.found:
        if job.method == method and job.data == data:
            for epoch, nll in enumerate(result.get("curve", ()), start=1):
                found.setdefault(float(epoch), []).append(nll)
    return found


EXPERIMENT = Experiment(
    "subnetworks-resnet",
    "001, appendix H.3.1, figures 6, 12 and 15: the small ResNet on CIFAR-10 and SVHN, each unseen by the other",
    (CIFAR, SVHN, LOW, FASTER, CHEAPER, ENDS, NARROWER, SIMILAR),
    {
        "smoke": Size(
            "8x8 digits, their negatives as unseen, 80 images, 2 epochs, an ensemble of 2",
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
            "3,000 images of each (001: 50,000 and 73,257), SVHN from 5,000 of its test images divided in three, 10 "
            "epochs in all for every method (001: 50 after 50 of the plain network), 1 mirrored draw a step (001: 5)"
            ", fitted prior scales (001: N(0, 1)); figures 6, 12 and 15 have ResNet-18 in 001; here the last "
            "block works on single pixels, so that 8 of 9 weights of its kernels meet only padding",
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
            "every method has 100 epochs in all; figures 6, 12 and 15 have ResNet-18 in 001",
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
