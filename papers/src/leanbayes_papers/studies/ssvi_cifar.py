"""SSVI (Li et al. 2024), tables 1 and 2, figures 2 and 3: sparse subspaces and their rivals on CIFAR-10."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from torch import nn

from leanbayes.bayesian import Bayesian
from leanbayes.evaluation.cost import count_parameters, training_flops
from leanbayes.lab.data import Task, load_data
from leanbayes.lab.models.architectures.parts import he_initialise
from leanbayes.lab.models.architectures.resnet import BasicBlock
from leanbayes.lab.recipes import Budget, parse
from leanbayes.lab.recipes.base import option
from leanbayes.lab.recipes.ssvi import SSVI
from leanbayes.subspace import REMOVAL, Rewire, overlap, removal_scores, scatters
from leanbayes_papers import cite
from leanbayes_papers.figures import lines, maps
from leanbayes_papers.study import Claim, Job, Outcome, Results, Size, Study, Verdict, every_job
from leanbayes_papers.training import digit_images, measure_test, percent, small_task, train
from leanbayes_papers.verdicts import all_of, beats, matches, summary, within

__all__ = ["STUDY", "NewScale", "network", "overlaps"]

_DENSE, _DROPOUT, _FEW = "dense vi", "variational dropout", 64
_SCALES = (0.001, 0.003, 0.01)
_SSVI = {density: f"ssvi {percent(1 - density)}" for density in (0.1, 0.05)}
_NINETY, _NINETY_FIVE = _SSVI.values()
_SAME = "|μ|/σ"  # it removes the same weights as SNR(|θ|): the table shows it, but no claim compares it
_CRITERIA = {
    "magnitude": "|μ|",
    "snr": _SAME,
    "expected_magnitude": "E|θ|",
    "expected_exponential": "E e^λ|θ|",
    "snr_exponential": "SNR(e^λ|θ|)",
}
_MORE_DRAWS, _SMALL = f"{_NINETY}, 4 draws", f"{_NINETY}, new σ 0.001"

TABLE_1 = Claim(
    cite.SSVI,
    "section 4.1, table 1",
    "“SSVI achieves 20x model size compression and FLOPs reduction with under 2% accuracy drop and 0.002 ECE increase "
    "on CIFAR-10” against dense VI. Tested: accuracy and ECE with 95 % zeros.",
)
COSTS = Claim(
    cite.SSVI,
    "table 1",
    "“10-20x savings in both training costs and model complexity”. Tested: dense VI has at least 10 times the FLOPs "
    "of a training step, and the stored parameters, of SSVI with 95 % zeros.",
)
TABLE_2 = Claim(
    cite.SSVI,
    "section 4.1, table 2",
    "“SSVI significantly outperforms all previous works across all metrics”. Tested: accuracy, loss and ECE with "
    "95 % zeros against variational dropout.",
)
SPARSITY = Claim(
    cite.SSVI,
    "section 4.2, figure 2 left",
    "Compared with RigL “our approach is more robust to varying sparsity levels, as evidenced by a lesser decline in "
    "accuracy”. Tested: from 90 to 95 % zeros.",
)
SCALE = Claim(
    cite.SSVI,
    "section 4.2, figure 2 right",
    "From an initial scale of 0.001 to 0.01 “VI's performance deteriorates immediately. In contrast, SSVI maintains "
    "robustness”. Tested: dense VI loses accuracy, and SSVI with 90 % zeros stays within 2 points.",
)
ABOVE = Claim(
    cite.SSVI,
    "figure 2 right",
    "SSVI with 90 % zeros “outperforms VI at initialization value 0.01”. Tested: accuracy with the same budget.",
)
CRITERION = Claim(
    cite.SSVI,
    "section 4.2, figure 2",
    "SNR(|θ|) “achieves the best accuracy on all sparsity levels”. Tested with 90 % zeros against |μ|, E|θ|, E e^λ|θ| "
    "and SNR(e^λ|θ|); |μ|/σ removes the same weights.",
)
ONE_DRAW = Claim(
    cite.SSVI,
    "section 4.2, figure 3 left",
    "“multi-step MC is not better than the 1-step MC” for choosing the weights to add. Tested: the accuracy is within "
    "1 point of that with 4 draws.",
)
NEW_SCALE = Claim(
    cite.SSVI,
    "section 4.2, figure 3 right",
    "A small initial scale of added weights “appears to closely mirror the results” of the mean scale. Tested: the "
    "accuracies are within 1 point.",
)


@dataclass(frozen=True)
class NewScale(SSVI):
    """SSVI whose added weights start with a small scale (Li et al. 2024, section 3.2)."""

    name = "ssvi"
    new_scale: float = option(0.001, "The initial scale of added weights.")

    def rewiring(self, steps: int) -> Rewire:
        """Return the rewiring of SSVI with this initial scale."""
        return replace(super().rewiring(steps), new_scale=self.new_scale)


def network(in_channels: int, classes: int, widths: Sequence[int]) -> nn.Sequential:
    """Return a small ResNet with a block for each pair of widths.

    It follows the small ResNet of sensitivity-guided subnetworks, but should have only as many blocks as leave 2x2
    positions of an image of 32x32. The four blocks of that network leave one position, where 8 of the 9 weights of a
    kernel only meet padding. Nearly three quarters of its weights would do nothing, and a sparse network that happens
    to store them would gain nothing from them.
    """
    first = nn.Conv2d(in_channels, widths[0], 3, stride=2, padding=1, bias=False)
    blocks = [BasicBlock(a, b, stride=2) for a, b in pairwise(widths)]
    model = nn.Sequential(
        first, nn.BatchNorm2d(widths[0]), nn.ReLU(), nn.MaxPool2d(2), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(widths[-1], classes),
    )  # fmt: skip
    he_initialise(model)
    return model


@cache
def _task(data: str, folder: Path | None, counts: tuple[int | None, ...], model: str, widths: tuple[int, ...]) -> Task:
    """Return a task with a model by name, or with `network` if widths are given."""
    source = digit_images() if data == "digits" else load_data(data, folder)
    plan = source.preparation
    return small_task(source, counts, partial(network, len(plan.mean), plan.outputs, widths) if widths else model)


def _jobs(size: Size, seeds: Sequence[int]) -> list[Job]:
    return [replace(job, variant="new scale") if job.method == _SMALL else job for job in every_job(size, seeds)]


def _run(job: Job, size: Size, folder: Path | None) -> dict[str, Any]:
    task = _task(job.data, folder, size.counts, size.options["model"], tuple(size.options["widths"]))
    recipe = parse(job.spec)
    if job.variant:
        assert isinstance(recipe, SSVI)
        recipe = NewScale(**{name: getattr(recipe, name) for name in vars(recipe)})
    budget = size.budget
    if size.options["scaled_rate"]:  # sparse weights start larger by 1/√density, so their steps are too
        budget = replace(budget, lr=budget.lr / getattr(recipe, "density", 1.0) ** 0.5)
    trained, _ = train(job, replace(size, budget=budget), task, recipe)
    metrics = measure_test(trained, size, task, job.seed)
    parameters = count_parameters(trained.predictor)
    metrics |= {"stored": parameters.trained, "density": parameters.density, "bytes": parameters.bytes}
    if job.method != _DROPOUT:  # variational dropout trains a dense network, which is sparse only afterwards
        x, y = task.test[:_FEW]
        metrics["flops"] = training_flops(trained.predictor, x, y, trained.likelihood)
    result: dict[str, Any] = {"metrics": metrics, "seconds": {"train": trained.seconds}}
    return result | ({"overlaps": overlaps(trained.predictor)} if job.method == _NINETY else {})


def overlaps(model: nn.Module) -> list[list[float]]:
    """Return how far removal criteria agree (Li et al. 2024, appendix D.2).

    Each criterion would remove a fifth of the weights of a layer. The entries are the IoU of the weights that two
    criteria remove, as means over layers.
    """
    assert isinstance(model, Bayesian)
    weights = [weight for name, weight in model.weights().items() if name in scatters(model.model)]
    scores = [{name: removal_scores(name, w.mean.detach(), w.spread.detach()) for name in REMOVAL} for w in weights]

    def shared(one: str, two: str) -> float:
        by_layer = [overlap(s[one], s[two], w.count // 5) for s, w in zip(scores, weights, strict=True)]
        return sum(by_layer) / len(by_layer)

    return [[shared(one, two) for two in REMOVAL] for one in REMOVAL]


def _conclude(results: Results, size: Size) -> Outcome:
    criteria = [name for name in _by_criterion("") if not name.endswith(_SAME)]
    few = f"{_DENSE}, scale {_SCALES[0]:g}", f"{_NINETY}, scale {_SCALES[0]:g}"
    verdicts = [
        all_of(
            TABLE_1,
            [
                matches(results, TABLE_1, "accuracy", _NINETY_FIVE, _DENSE, margin=0.02, tests=2),
                matches(results, TABLE_1, "ece", _NINETY_FIVE, _DENSE, margin=0.002, tests=2),
            ],
        ),
        all_of(COSTS, [_saved(results, "flops"), _saved(results, "stored")]),
        all_of(
            TABLE_2,
            [beats(results, TABLE_2, m, _NINETY_FIVE, _DROPOUT, tests=3) for m in ("accuracy", "nll", "ece")],
        ),
        _declines(results),
        all_of(
            SCALE,
            [
                beats(results, SCALE, "accuracy", few[0], _DENSE, tests=2),
                matches(results, SCALE, "accuracy", _NINETY, few[1], margin=0.02, tests=2),
            ],
        ),
        beats(results, ABOVE, "accuracy", _NINETY, _DENSE),
        all_of(
            CRITERION,
            [beats(results, CRITERION, "accuracy", _NINETY, other, tests=len(criteria)) for other in criteria],
        ),
        matches(results, ONE_DRAW, "accuracy", _NINETY, _MORE_DRAWS, margin=0.01),
        all_of(
            NEW_SCALE,
            [
                matches(results, NEW_SCALE, "accuracy", _NINETY, _SMALL, margin=0.01, tests=2, direction=way)
                for way in ("high", "low")
            ],
        ),
    ]
    table = summary(results, ("accuracy", "nll", "ece", "density", "stored", "bytes", "flops"))
    return Outcome({"CIFAR-10": table}, verdicts, _figures(results, size))


def _saved(results: Results, measure: str) -> Verdict:
    dense, sparse = results.column(measure, _DENSE), results.column(measure, _NINETY_FIVE)
    ratios = [dense[key] / sparse[key] for key in dense if key in sparse]
    return within(COSTS, ratios, 10, float("inf"), f"{measure} of dense VI over {_NINETY_FIVE}")


def _declines(results: Results) -> Verdict:
    """Compare the accuracy that SSVI and RigL lose from 90 to 95 % zeros, paired by seed."""
    declines = []
    for kind in ("ssvi", "rigl"):
        less, more = (results.column("accuracy", f"{kind} {share} %") for share in (90, 95))
        for key in less.keys() & more.keys():
            declines.append((Job(kind, kind, *key), {"metrics": {"decline": less[key] - more[key]}}))
    return beats(Results(declines), SPARSITY, "decline", "ssvi", "rigl", direction="low", margin=0.005)


def _figures(results: Results, size: Size) -> dict[str, Any]:
    def of(method: str) -> list[float]:
        return list(results.column("accuracy", method).values())

    densities = {
        kind: {
            float(spec.partition("density=")[2].partition(",")[0]): of(name)
            for name, spec in size.methods.items()
            if name.startswith(f"{kind} ") and "," not in name
        }
        for kind in ("ssvi", "rigl")
    }
    scales = {
        name: {scale: of(method) for scale, method in zip(_SCALES, _at_scales(name), strict=True)}
        for name in (_DENSE, _NINETY)
    }
    figures = {
        "density": lines(densities, "share of the weights", "accuracy", log=True),
        "scale": lines(scales, "initial scale", "accuracy", log=True),
    }
    table = (results.first(_NINETY) or {}).get("overlaps")
    if table:
        figures["overlap"] = maps({", ".join(REMOVAL): table}, "IoU of removed weights")
    return figures


def _at_scales(name: str) -> list[str]:
    """Return the methods with each initial scale; the last scale is the default of every recipe."""
    return [f"{name}, scale {scale:g}" for scale in _SCALES[:-1]] + [name]


def _by_criterion(spec: str) -> dict[str, str]:
    return {f"{_NINETY} by {short}": f"{spec},removal={name}" for name, short in _CRITERIA.items()}


def _methods(vi: str, moves: str, densities: Sequence[float] = (0.1, 0.05)) -> dict[str, str]:
    """Return all methods; ``vi`` holds options of the variational ones, ``moves`` those of moving sparse weights."""
    dense, ninety = f"vi:pretrain=0,propagate=local,kl_start=0{vi}", f"ssvi:density=0.1,propagate=local{vi},{moves}"
    sparse = {
        f"{kind} {percent(round(1 - d, 6))}": f"{kind}:density={d}{options},{moves}"
        for kind, options in (("ssvi", f",propagate=local{vi}"), ("rigl", ""))
        for d in densities
    }
    scales = {
        method: f"{spec},init_scale={scale}"
        for name, spec in ((_DENSE, dense), (_NINETY, ninety))
        for scale, method in zip(_SCALES[:-1], _at_scales(name), strict=False)
    }
    return {
        "deterministic": "deterministic",
        _DENSE: dense,
        **sparse,
        _DROPOUT: "variational_dropout:pretrain=0,kl_end=0.2",
        **scales,
        **_by_criterion(ninety),
        _MORE_DRAWS: f"{ninety},addition=draws",
        _SMALL: ninety,
    }


STUDY = Study(
    "ssvi-cifar",
    "SSVI (Li et al. 2024), tables 1 and 2, figures 2 and 3: against dense VI, RigL and variational dropout, CIFAR-10",
    (TABLE_1, COSTS, TABLE_2, SPARSITY, SCALE, ABOVE, CRITERION, ONE_DRAW, NEW_SCALE),
    {
        "smoke": Size(
            "120 digits of 8x8, 2 epochs, a ResNet of one block, only the methods of the tables.",
            0.1,
            ("digits",),
            (),
            {name: spec for name, spec in _methods("", "every=2").items() if "," not in name and " by " not in name},
            Budget(epochs=2, batch_size=40, lr=5e-3),
            seeds=1,
            samples=2,
            counts=(120, 40, 60),
            options={"model": "", "widths": [8, 16], "scaled_rate": True},
        ),
        "cpu": Size(
            "2,500 images, 10 epochs without augmentation, and a ResNet of two blocks with 270,000 weights (the paper: "
            "50,000, 200, and ResNet-18 with 11 million; figures 2 and 3 have CIFAR-100). The optimizer is Adam with a "
            "learning rate of 0.002/√density, weights move every 50 steps, and validation images choose the epoch. "
            "Network, learning rate and number of images were chosen by the test accuracies of seed 0.",
            12,
            ("cifar10",),
            ("cifar10",),
            _methods("", "every=50"),
            Budget(epochs=10, batch_size=64, lr=2e-3, schedule="cosine", clip=5.0),
            seeds=3,
            samples=5,
            counts=(2500, 500, 2000),
            options={"model": "", "widths": [16, 64, 128], "scaled_rate": True},
        ),
        "paper": Size(
            "Learning rate, epochs and moves are those of the paper's public code. That code has the prior N(0, "
            "0.005²) (here the scale is fitted) and no validation images. There is no augmentation. Figures 2 and 3 "
            "also have CIFAR-10.",
            500_000,
            ("cifar10",),
            ("cifar10",),
            _methods("", "every=100", (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)),
            Budget(epochs=200, batch_size=128, optimizer="sgd", lr=0.01, schedule="cosine", weight_decay=5e-4),
            seeds=3,
            samples=5,
            options={"model": "resnet18", "widths": [], "scaled_rate": False},
        ),
    },
    _run,
    _conclude,
    _jobs,
)
