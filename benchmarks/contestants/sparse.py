"""Sparse networks: RigL (Evci et al. 2020) as masks over dense weights, and LeanBayes, which stores what is not zero.

The masks are those of the public package rigl-torch. It imports torchvision only to ask whether a layer is a block of
its ResNets, and torchvision does not import here. Two empty classes take the place of these blocks while it is
imported. Both libraries keep the first layer dense. No step that is measured moves weights; both do this rarely.
"""

import contextlib
import copy
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

import leanbayes as lb
from contestants.base import (
    DRAWS,
    N_DATA,
    Contestant,
    Task,
    cross_entropy,
    mean_of_passes,
    product_layers,
    require,
    sgd,
    stepper,
)  # fmt: skip
from leanbayes.subspace import scatters


@contextlib.contextmanager
def _without_torchvision() -> Iterator[None]:
    names = ("torchvision", "torchvision.models", "torchvision.models.resnet")
    stubs: list[Any] = [ModuleType(name) for name in names]
    stubs[0].models, stubs[1].resnet = stubs[1], stubs[2]
    stubs[2].Bottleneck, stubs[2].BasicBlock = type("Bottleneck", (), {}), type("BasicBlock", (), {})
    sys.modules.update(zip(names, stubs, strict=True))
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]


with _without_torchvision():
    from rigl_torch.RigL import RigLScheduler


def masks(task: Task, density: float) -> Contestant:
    """Build RigL as masks over dense weights, gradients and momentum."""
    name, model = f"rigl-torch, {density:.0%} kept", copy.deepcopy(task.plain)
    optimizer = sgd(model)
    # The schedule asks for the next move at each step; the moves themselves come after `delta` steps and are not here.
    how = {"dense_allocation": density, "T_end": 10**9, "delta": 10**8, "ignore_linear_layers": False}
    scheduler = RigLScheduler(model, optimizer, **how)
    update = stepper(optimizer, cross_entropy(model))

    def step(x: Tensor, y: Tensor) -> float:
        loss = update(x, y)
        scheduler()
        return loss

    named = {id(layer.weight): path for path, layer in product_layers(model)}
    pairs = zip(scheduler.W, scheduler.backward_masks, strict=True)
    kept = {named[id(weight)]: mask for weight, mask in pairs if mask is not None}

    def audit() -> dict[str, Any]:
        update(task.x, task.y)
        zero = sum(int(mask.numel() - mask.sum()) for mask in kept.values())
        for path, mask in kept.items():
            require(not model.get_submodule(path).weight[~mask].any(), name, f"{path} is not zero under its mask")
            share = mask.float().mean().item()
            require(abs(share - density) < 1e-3 + 1 / mask.numel(), name, f"{path} keeps {share}")
        require(len(kept) == len(named) - 1, name, "more than one layer is dense")
        return {"zeros": zero}

    contestant = Contestant(
        name, "rigl-torch", model, mean_of_passes(model), "1 pass", audit, step, optimizer=optimizer, masks=kept
    )
    contestant.zeros = sum(int(mask.numel() - mask.sum()) for mask in kept.values())
    return contestant


def stored(task: Task, density: float) -> Contestant:
    """Build a plain sparse network of LeanBayes, which stores only the weights that are not zero."""
    name = f"LeanBayes make_sparse, {density:.0%} stored"
    model = lb.make_sparse(copy.deepcopy(task.plain), density)
    optimizer = sgd(model)

    def audit() -> dict[str, Any]:
        return _stores(name, model, density, task)

    step = stepper(optimizer, cross_entropy(model))
    return Contestant(name, "leanbayes", model, mean_of_passes(model), "1 pass", audit, step, optimizer=optimizer)


def random(task: Task, density: float) -> Contestant:
    """Build a sparse network of LeanBayes whose stored weights are random, with mirrored draws and IVON."""
    name = f"LeanBayes sparse IVON, {density:.0%} stored"
    bnn = lb.Bayesian(copy.deepcopy(task.plain), subspace=lb.sparse(density), propagate="mirrored")
    optimizer = lb.optim.IVON(bnn, 1e-3, n_data=N_DATA, steps=1000)
    step = stepper(optimizer, lambda x, y: lb.elbo(bnn, x, y, lb.Categorical(), n_data=N_DATA, with_kl=False).loss)

    def predict(x: Tensor) -> Tensor:
        return lb.predict(bnn, x, samples=DRAWS, by="sample").mean

    def audit() -> dict[str, Any]:
        require(not torch.equal(predict(task.x), predict(task.x)), name, "two predictions are the same")
        scales = sum(part.rho.numel() for _, part in bnn.parts())
        return _stores(name, bnn.model, density, task) | {"random_coordinates": scales}

    return Contestant(
        name, "leanbayes", bnn, predict, f"{DRAWS} draws", audit, step, optimizer=optimizer, networks=[bnn.model]
    )


def _stores(name: str, model: torch.nn.Module, density: float, task: Task) -> dict[str, Any]:
    layers = scatters(model)
    require(len(layers) == len(list(product_layers(task.plain))) - 1, name, "more than one layer is dense")
    for path, scatter in layers.items():
        share = len(scatter.index) / scatter.size
        require(abs(share - density) < 1e-3 + 1 / scatter.size, name, f"{path} stores {share}")
    return {"zeros": sum(scatter.size - len(scatter.index) for scatter in layers.values())}


ROWS: dict[str, Callable[[Task], Contestant]] = {
    row: partial(build, density=density)
    for density in (0.05, 0.01)
    for row, build in {
        f"rigl-torch, {density:.0%} kept": masks,
        f"LeanBayes make_sparse, {density:.0%} stored": stored,
        f"LeanBayes sparse IVON, {density:.0%} stored": random,
    }.items()
}
