"""Every weight is random and trained by natural gradients (IVON, Shen et al. 2024): the public package and LeanBayes.

The public package makes every parameter random, norms included, and LeanBayes does the same here. All start with the
same scale, effective number of examples and weight decay. LeanBayes's own setting ``lean`` trains the means by Adam,
averages them, and predicts in one pass of moments; its row does what the second half of its training does.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import ivon
import torch
import torch.nn.functional as F
from torch import Tensor

import leanbayes as lb
from contestants.base import DRAWS, N_DATA, Contestant, Task, require, stepper
from contestants.variational import SCALE
from leanbayes.optim import Problem
from leanbayes.train import LeanTraining

DECAY, STEPS = 1e-4, 1000
CURVATURE = 1 / (N_DATA * SCALE**2) - DECAY


def public(task: Task) -> Contestant:
    """Build the contestant of the package ivon-opt, as its documentation shows it."""
    name, model = "ivon-opt", copy.deepcopy(task.plain)
    optimizer = ivon.IVON(model.parameters(), 1e-3, N_DATA, CURVATURE, beta2=1 - 5 / STEPS, weight_decay=DECAY)

    def step(x: Tensor, y: Tensor) -> float:
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
        optimizer.step()
        return loss.item()

    @torch.no_grad()
    def predict(x: Tensor) -> Tensor:
        model.eval()
        total = torch.zeros(())
        for _ in range(DRAWS):
            with optimizer.sampled_params():
                total = total + model(x).softmax(-1)
        model.train()
        return total / DRAWS

    def audit() -> dict[str, Any]:
        before = [p.detach().clone() for p in model.parameters()]
        with optimizer.sampled_params():
            noise = torch.cat([(p - q).flatten() for p, q in zip(model.parameters(), before, strict=True)])
        return _noise_is_right(name, noise, task) | _passes_differ(name, predict, task.x)

    scales = sum(p.numel() for p in model.parameters())  # the optimizer keeps their curvatures
    return Contestant(
        name, "ivon-opt", model, predict, f"{DRAWS} draws", audit, step, optimizer=optimizer, others=scales
    )


def lean_bayes(task: Task, name: str, propagate: str, predict_by: str | None) -> Contestant:
    """Build a contestant of LeanBayes: natural gradients for means and scales, or its setting ``lean``."""
    bnn = lb.Bayesian(copy.deepcopy(task.plain), propagate=propagate)
    if predict_by is None:
        settings = {"weight_decay": DECAY, "initial_scale": SCALE, "steps": STEPS}
        optimizer: Any = lb.optim.IVON(bnn, 1e-3, n_data=N_DATA, **settings)
    else:
        optimizer = _lean_optimizer(bnn)
    step = stepper(optimizer, lambda x, y: lb.elbo(bnn, x, y, lb.Categorical(), n_data=N_DATA, with_kl=False).loss)
    by = {"draws": lb.propagate.Sample(), "moments": lb.propagate.Moments(rank=0)}.get(predict_by or "draws")
    by = lb.propagate.Moments() if predict_by == "correlated moments" else by
    predict = lambda x: lb.predict(bnn, x, samples=DRAWS, by=by).mean  # noqa: E731

    def audit() -> dict[str, Any]:
        if predict_by is not None:
            prediction = lb.predict(bnn, task.x, by=by)
            require(bool((prediction.epistemic > 0).any()), name, "the weights add no uncertainty")
            return {"random_coordinates": sum(part.rho.numel() for _, part in bnn.parts())}
        scales = torch.cat([F.softplus(part.rho.detach()).flatten() for _, part in bnn.parts()])
        return _noise_is_right(name, scales * torch.randn_like(scales), task) | _passes_differ(name, predict, task.x)

    return Contestant(
        name, "leanbayes", bnn, predict, f"{DRAWS} draws" if predict_by is None else "1 pass of moments", audit,
        None if predict_by == "correlated moments" else step, optimizer=optimizer, networks=[bnn.model],
        streams=1 if predict_by is None else 2,
    )  # fmt: skip


def _lean_optimizer(bnn: lb.Bayesian) -> Any:
    how = LeanTraining().optimization(STEPS, 1e-3, lb.Categorical())
    problem = Problem(model=bnn, groups=[], lr=1e-3, weight_decay=LeanTraining.weight_decay, n_data=N_DATA, steps=STEPS)
    builder: Any = how.optimizer
    optimizer = builder.build(problem)
    for group in optimizer.param_groups:
        group["average_from"] = 0  # the dearer half of the training, in which means are averaged
    return optimizer


def _noise_is_right(name: str, noise: Tensor, task: Task) -> dict[str, Any]:
    numbers = sum(p.numel() for p in task.plain.parameters())
    require(noise.numel() == numbers, name, f"{noise.numel()} of {numbers} numbers are random")
    require(abs(noise.std().item() / SCALE - 1) < 0.02, name, f"the scale is {noise.std().item()}, not {SCALE}")
    return {"random_coordinates": numbers}


def _passes_differ(name: str, predict: Callable[[Tensor], Tensor], x: Tensor) -> dict[str, Any]:
    require(not torch.equal(predict(x), predict(x)), name, "two predictions are the same")
    return {}


ROWS: dict[str, Callable[[Task], Contestant]] = {
    "ivon-opt": public,
    "LeanBayes IVON, sample": partial(lean_bayes, name="LeanBayes IVON, sample", propagate="sample", predict_by=None),
    "LeanBayes IVON, mirrored": partial(
        lean_bayes, name="LeanBayes IVON, mirrored", propagate="mirrored", predict_by=None
    ),
    "LeanBayes lean": partial(lean_bayes, name="LeanBayes lean", propagate="mirrored", predict_by="moments"),
    "LeanBayes lean, correlations": partial(
        lean_bayes, name="LeanBayes lean, correlations", propagate="mirrored", predict_by="correlated moments"
    ),
}
