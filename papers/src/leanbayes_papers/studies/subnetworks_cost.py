"""Sensitivity-guided subnetworks, table 1: parameters, FLOPs and memory by its formulas, and counted."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from leanbayes.bayesian import Bayesian
from leanbayes.evaluation.cost import count_flops, count_parameters, forward_flops, measure, training_flops
from leanbayes.lab.data import Task
from leanbayes.lab.data.source import from_arrays
from leanbayes.lab.models import lenet300, resnet18, small_resnet, unet
from leanbayes.lab.recipes import Budget, parse
from leanbayes.lab.recipes.variational import Variational
from leanbayes.likelihood import Likelihood
from leanbayes.objective import elbo
from leanbayes.prediction import Predictor, predict
from leanbayes.subspace import sensitivity
from leanbayes_papers import cite
from leanbayes_papers.cost_table import table_1
from leanbayes_papers.study import Answer, Claim, Job, Outcome, Results, Size, Study, Verdict
from leanbayes_papers.training import partials, small_task, train
from leanbayes_papers.verdicts import all_of, summary

__all__ = ["STUDY"]

_DRAWS = 5  # as in the paper, in training and prediction
_EPOCHS = 50  # as in both papers: of the plain network, and again of the partly random one
_ONE = "partial 1 %, one draw"
_NETS: dict[str, tuple[tuple[int, int, int], int, Callable[[], nn.Module]]] = {  # input, classes, network
    "digits": ((1, 8, 8), 10, partial(lenet300, 64, 10)),
    "LeNet 300-100": ((1, 28, 28), 10, partial(lenet300, 784, 10)),
    "small ResNet": ((3, 32, 32), 10, partial(small_resnet, 3, 10)),
    "U-Net of 8 to 64": ((3, 48, 64), 11, partial(unet, 3, 11, 8, 3)),
    "ResNet-18": ((3, 32, 32), 10, partial(resnet18, stem="cifar7")),
    "U-Net of 64 to 1024": ((3, 128, 256), 20, partial(unet, 3, 20, 64, 4)),
}

PARAMETERS = Claim(
    cite.SUBNETWORKS,
    "appendix B, table 1",
    "A partly random network has (1 + r)θ parameters, VI has 2θ, and an ensemble of M has Mθ.",
)
FEWER = Claim(
    cite.SUBNETWORKS,
    "abstract",
    "“approximately 45%, 80% less [parameters] than standard VI and ensembles”. Tested: the 1 % network has 40 to 50 % "
    "less than VI, and 75 to 85 % less than the ensemble.",
)
PLAIN = Claim(
    cite.SUBNETWORKS,
    "appendix C, table 1",
    "“the total FLOPs for a single forward-backward pass … would cost 3f_d”. Tested: to within 10 %.",
)
VI = Claim(
    cite.SUBNETWORKS,
    "appendix C, table 1",
    "A training step of VI with N draws costs 2(N + 2)f_d, which for N = 5 is 4.67 plain steps. Tested: to within 10 "
    "%.",
)
PARTIAL = Claim(
    cite.SUBNETWORKS,
    "appendix C, table 1",
    "A training step of a partly random network costs (1 + r)(N + 2)f_d, which for 1 % and N = 5 is 2.36 plain steps. "
    "Tested: to within 10 %.",
)
CHEAPER = Claim(
    cite.ABBOUD,
    "table 1",
    "The 1 % network trains “with 30% fewer FLOPs” than five networks. Tested: counted FLOPs, with five draws a step "
    "and as many epochs as the plain network before.",
)
ONE_DRAW = Claim(
    cite.OURS,
    "subnetworks-cost",
    "With one draw a step, the 1 % network trains with less than half of the FLOPs of five networks.",
)
NEGLIGIBLE = Claim(
    cite.SUBNETWORKS,
    "appendix C",
    "“FLOPs associated with the intermediate sensitivity analysis step … negligible”. Tested: below 1 % of a training "
    "of 50 and 50 epochs.",
)
MEMORY = Claim(
    cite.SUBNETWORKS, "table 1", "The 1 % network needs the memory of two plain networks. Tested: to within 10 %."
)


@cache
def _task(network: str) -> Task:
    """Return a task of a few made-up images, with a class for each pixel if the network is a U-Net.

    Counts do not depend on the contents of the images. Only those of prediction depend on the position of the random
    weights, because draws share what comes before the first of them.
    """
    shape, classes, make = _NETS[network]
    random = np.random.default_rng(0)
    x = random.random((40, *shape), dtype=np.float32)
    pixels = network.startswith("U-Net")
    y = (np.arange(40 * (shape[1] * shape[2] if pixels else 1)) % classes).reshape((40, *(shape[1:] if pixels else ())))
    return small_task(from_arrays(Path(network), {"train": (x, y)}, "pixels" if pixels else "classes"), model=make)


def _run(job: Job, size: Size, folder: Path | None) -> dict[str, Any]:  # noqa: ARG001
    task, recipe = _task(job.data), parse(job.spec)
    x, y = next(iter(DataLoader(task.train, size.budget.batch_size)))
    model, likelihood = task.model(), task.likelihood
    plain, forward = training_flops(model, x, y, likelihood), forward_flops(model, x)
    counted = train(job, size, task, recipe)[0]
    predictor, draws = counted.predictor, recipe.draws if isinstance(recipe, Variational) else 1
    step = training_flops(predictor, x, y, counted.likelihood, samples=draws)
    chosen = count_flops(lambda: sensitivity(model, [(x, y)], likelihood))
    before = 1 if isinstance(recipe, Variational) and recipe.pretrain else 0
    whole = before + step / plain
    size_of_method, size_of_plain = count_parameters(predictor), count_parameters(model)
    metrics = {
        "parameters": size_of_method.trained / size_of_plain.trained,
        "memory": size_of_method.bytes / size_of_plain.bytes,
        "flops of a plain step": plain / forward,
        "flops of a step": step / plain,
        "flops of training": whole,
        "flops of prediction": forward_flops(predictor, x, draws=size.samples if _random(predictor) else None)
        / forward,
    }
    if before:
        metrics["sensitivity"] = chosen / (plain * _EPOCHS * whole)
    formula = recipe.relative_cost()
    if formula is not None:
        metrics |= {
            "parameters by formula": formula.parameters,
            "memory by formula": formula.memory,
            "flops of a step by formula": formula.flops / table_1("deterministic").flops,
            "flops of training by formula": before + formula.flops / table_1("deterministic").flops,
        }
    repeats = size.options["repeats"]
    predicted = partial(predict, predictor, x, likelihood=counted.likelihood, samples=size.samples)
    seconds = {
        "plain step": measure(partial(_step, model, x, y, likelihood, 1), repeats).best,
        "step": measure(partial(_step, predictor, x, y, counted.likelihood, draws), repeats).best,
        "predict": measure(predicted, repeats).best,
    }
    return {"metrics": metrics, "seconds": seconds}


def _random(predictor: nn.Module) -> bool:
    """Return whether predictions take draws; an ensemble has its members instead, and a plain network one pass."""
    return isinstance(predictor, Bayesian) or (isinstance(predictor, Predictor) and predictor.members is None)


def _step(model: nn.Module, x: Tensor, y: Tensor, likelihood: Likelihood, draws: int) -> None:
    """Do a forward and a backward pass, for an ensemble with each member."""
    parts = model.parts().values() if isinstance(model, Predictor) and model.members is not None else (model,)
    for part in parts:
        loss = elbo(part, x, y, likelihood, n_data=len(x), samples=draws).loss
        torch.autograd.grad(loss, [p for p in part.parameters() if p.requires_grad], allow_unused=True)


def _counted(claim: Claim, counts: Mapping[str, float], low: float, high: float, what: str) -> Verdict:
    """Judge counts, which are exact and need no interval: a claim holds if it does for every network."""
    if not counts:
        return Verdict(claim, "not testable here", f"{what}: nothing was counted")
    answer: Answer = "holds" if all(low <= value <= high for value in counts.values()) else "does not hold"
    by_network = ", ".join(f"{network} {value:.4g}" for network, value in counts.items())
    return Verdict(claim, answer, f"{what}: {by_network}, expected from {low:.4g} to {high:.4g}")


def _of(results: Results, measure: str, method: str) -> dict[str, float]:
    """Return a measure by network; seeds change nothing."""
    return {network: value for (network, _), value in results.column(measure, method).items()}


def _over(results: Results, measure: str, method: str, other: str, of: str | None = None) -> dict[str, float]:
    """Return a measure over another measure, or over the same measure of another method, by network."""
    first, second = _of(results, measure, method), _of(results, of or measure, other)
    return {network: value / second[network] for network, value in first.items() if network in second}


def _conclude(results: Results, size: Size) -> Outcome:
    ours = "partial 1 %"
    by_formula = [name for name, spec in size.methods.items() if parse(spec).relative_cost() is not None]

    def agrees(claim: Claim, measure: str, method: str, tolerance: float) -> Verdict:
        shares = _over(results, measure, method, method, f"{measure} by formula")
        return _counted(claim, shares, 1 - tolerance, 1 + tolerance, f"{measure} of {method}, counted over formula")

    def saved(other: str) -> dict[str, float]:
        return {network: 1 - share for network, share in _over(results, "parameters", ours, other).items()}

    training = "flops of training"
    verdicts = [
        all_of(PARAMETERS, [agrees(PARAMETERS, "parameters", name, 0.005) for name in by_formula]),
        all_of(
            FEWER,
            [
                _counted(FEWER, saved("vi"), 0.4, 0.5, "share of VI's parameters that is saved"),
                _counted(FEWER, saved("ensemble"), 0.75, 0.85, "share of the ensemble's parameters that is saved"),
            ],
        ),
        _counted(
            PLAIN, _of(results, "flops of a plain step", "deterministic"), 2.7, 3.3, "FLOPs of a plain step over f_d"
        ),
        agrees(VI, "flops of a step", "vi", 0.1),
        agrees(PARTIAL, "flops of a step", ours, 0.1),
        _counted(
            CHEAPER,
            _over(results, training, ours, "ensemble"),
            0,
            0.7,
            "FLOPs of the 1 % network over those of the ensemble",
        ),
        _counted(
            ONE_DRAW,
            _over(results, training, _ONE, "ensemble"),
            0,
            0.5,
            "FLOPs of the 1 % network over those of the ensemble",
        ),
        _counted(NEGLIGIBLE, _of(results, "sensitivity", ours), 0, 0.01, "share of the FLOPs of training"),
        agrees(MEMORY, "memory", ours, 0.1),
    ]
    measures = (
        "parameters", "parameters by formula", "memory", "memory by formula", "flops of a step",
        "flops of a step by formula", training, f"{training} by formula", "flops of prediction", "sensitivity",
    )  # fmt: skip
    return Outcome({f"{name}, plain network = 1": summary(results, measures, name) for name in size.data}, verdicts)


_RANDOM = f"propagate=sample,draws={_DRAWS}"  # the paper counts these
_METHODS = {
    "deterministic": "deterministic",
    "ensemble": "ensemble",
    "dropout": "dropout",
    "vi": f"vi:pretrain=0,{_RANDOM}",
    "vi by local reparameterization": f"vi:pretrain=0,propagate=local,draws={_DRAWS}",
    **partials([0.01, 0.05, 0.2], _RANDOM),
    _ONE: "partial:rate=0.01,propagate=sample",
}
_SMALL = Size(
    "LeNet 300-100 on made-up images of 8x8.",
    0.1,
    ("digits",),
    (),
    {name: _METHODS[name] for name in ("deterministic", "ensemble", "vi", "partial 1 %", _ONE)},
    Budget(epochs=2, batch_size=10),
    seeds=1,
    samples=_DRAWS,
    options={"repeats": 1},
)

STUDY = Study(
    "subnetworks-cost",
    "Sensitivity-guided subnetworks, table 1: parameters, FLOPs and memory, by formula and counted",
    (PARAMETERS, FEWER, PLAIN, VI, PARTIAL, CHEAPER, ONE_DRAW, NEGLIGIBLE, MEMORY),
    {
        "smoke": _SMALL,
        "cpu": replace(
            _SMALL,
            scaled="One batch of 10 made-up images is counted; counts depend neither on data nor on seeds. LeNet "
            "300-100 and the small ResNet are those of the paper. The U-Net has 8 to 64 channels on 48x64 (the paper: "
            "64 to 1024 on 256x512).",
            minutes=2,
            data=("LeNet 300-100", "small ResNet", "U-Net of 8 to 64"),
            methods=_METHODS,
            options={"repeats": 5},
        ),
        "paper": replace(
            _SMALL,
            scaled="One batch of 10 made-up images is counted; those of the U-Net are 128x256 (the paper: 256x512).",
            minutes=60,
            data=("LeNet 300-100", "small ResNet", "ResNet-18", "U-Net of 64 to 1024"),
            methods=_METHODS,
            options={"repeats": 5},
        ),
    },
    _run,
    _conclude,
    rests_on_scales=False,  # it counts operations, parameters and bytes, which do not depend on the values of scales
)
