"""Several networks in one way or another: a deep ensemble, MC dropout, Packed-Ensembles and BatchEnsemble.

The last two are the layers of torch-uncertainty. The package itself does not import here, because it needs torchvision
and lightning, and torchvision's operators do not load beside the pinned torch for the CPU. An empty module takes the
place of its ``__init__`` in this process. The layers are its own, unchanged.
"""

import copy
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leanbayes as lb
from contestants.base import (
    DRAWS,
    Contestant,
    Task,
    cross_entropy,
    mean_of_passes,
    replace,
    require,
    sgd,
    stepper,
)  # fmt: skip

MEMBERS = 5
ESTIMATORS, WIDTH = 4, 2  # of Packed-Ensembles and BatchEnsemble, as in their papers


def _layers_of_torch_uncertainty() -> Any:
    if "torch_uncertainty" not in sys.modules:
        spec = importlib.util.find_spec("torch_uncertainty")
        if spec is None or spec.submodule_search_locations is None:
            raise SystemExit("torch-uncertainty is not installed; see benchmarks/peers.txt")
        package = ModuleType("torch_uncertainty")
        package.__path__ = list(spec.submodule_search_locations)
        sys.modules["torch_uncertainty"] = package
    return importlib.import_module("torch_uncertainty.layers")


def five_networks(task: Task) -> Contestant:
    """Build a deep ensemble (Lakshminarayanan et al. 2017), whose members train and predict one after the other."""
    name = "five networks"
    members = nn.ModuleList(copy.deepcopy(task.plain) for _ in range(MEMBERS))
    for member in members[1:]:
        member.apply(lambda layer: layer.reset_parameters() if hasattr(layer, "reset_parameters") else None)
    optimizers = [sgd(member) for member in members]
    steps = [stepper(how, cross_entropy(member)) for how, member in zip(optimizers, members, strict=True)]
    predictions = [mean_of_passes(member) for member in members]

    def audit() -> dict[str, Any]:
        return _members_differ(name, torch.stack([predict(task.x) for predict in predictions]))

    return Contestant(
        name, "torch", members, lambda x: torch.stack([predict(x) for predict in predictions]).mean(0),
        f"{MEMBERS} networks", audit, lambda x, y: sum(step(x, y) for step in steps) / MEMBERS,
        optimizer=_Several(optimizers), networks=list(members),
    )  # fmt: skip


def dropout(task: Task) -> Contestant:
    """Build MC dropout (Gal and Ghahramani 2016), with the dropout that `leanbayes.baselines.MCDropout` inserts."""
    name, model = "MC dropout", lb.baselines.MCDropout(copy.deepcopy(task.plain))
    optimizer = sgd(model)

    def predict(x: Tensor) -> Tensor:
        return lb.predict(model, x, samples=DRAWS).mean

    def audit() -> dict[str, Any]:
        require(not torch.equal(predict(task.x), predict(task.x)), name, "two predictions are the same")
        return {"dropout_at": len(model.inserted)}

    step = stepper(optimizer, cross_entropy(model))
    return Contestant(
        name, "leanbayes", model, predict, f"{DRAWS} draws", audit, step, optimizer=optimizer, networks=[model.model]
    )


def packed(task: Task) -> Contestant:
    """Build Packed-Ensembles (Laurent et al. 2023) with α = 2 and M = 4: each member has half of the width."""
    name, layers = "torch-uncertainty Packed-Ensembles", _layers_of_torch_uncertainty()
    kinds = [(name, layer) for name, layer in task.plain.named_modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    first, last = kinds[0][0], kinds[-1][0]

    def convert(path: str, layer: nn.Module) -> nn.Module | None:
        how = {"alpha": WIDTH, "num_estimators": ESTIMATORS, "first": path == first, "last": path == last}
        if isinstance(layer, nn.Conv2d):
            where = {"stride": layer.stride, "padding": layer.padding, "bias": layer.bias is not None}
            shape = (layer.in_channels, layer.out_channels, layer.kernel_size)
            return layers.PackedConv2d(*shape, **where, **how)  # type: ignore[no-any-return]
        if isinstance(layer, nn.Linear):
            return layers.PackedLinear(layer.in_features, layer.out_features, **how)  # type: ignore[no-any-return]
        if isinstance(layer, nn.BatchNorm2d):
            return nn.BatchNorm2d(WIDTH * layer.num_features)
        return None

    model = replace(copy.deepcopy(task.plain), convert)
    optimizer = sgd(model)
    step = stepper(optimizer, lambda x, y: F.cross_entropy(model(x), y.repeat(ESTIMATORS)))

    def audit() -> dict[str, Any]:
        logits = model(task.x).unflatten(0, (ESTIMATORS, -1))
        inner = model.get_submodule(kinds[1][0]).conv
        (gradient,) = torch.autograd.grad(logits[0].square().sum(), inner.weight)
        touched = gradient.unflatten(0, (ESTIMATORS, -1)).flatten(1).abs().amax(1) > 0
        require(touched.tolist() == [True] + [False] * (ESTIMATORS - 1), name, "members share inner weights")
        return _members_differ(name, logits.softmax(-1))

    return Contestant(
        name, "torch-uncertainty", model, _mean_of_members(model), f"{ESTIMATORS} members, 1 pass", audit, step,
        optimizer=optimizer,
    )  # fmt: skip


def batch_ensemble(task: Task) -> Contestant:
    """Build BatchEnsemble (Wen et al. 2020): members share weights but for a factor of each input and output channel.

    As in the paper, and as the library does by default, each member trains on its part of the batch, so a step is one
    pass. Predictions repeat the batch for each member. The library's wrapper does this, but it also converts nested
    layers in a way that fails, so the batch is repeated here.
    """
    name, layers = "torch-uncertainty BatchEnsemble", _layers_of_torch_uncertainty()

    def convert(_: str, layer: nn.Module) -> nn.Module | None:
        if isinstance(layer, nn.Conv2d):
            return layers.BatchConv2d.from_conv2d(layer, num_estimators=ESTIMATORS)  # type: ignore[no-any-return]
        if isinstance(layer, nn.Linear):
            return layers.BatchLinear.from_linear(layer, num_estimators=ESTIMATORS)  # type: ignore[no-any-return]
        return None

    model = replace(copy.deepcopy(task.plain), convert)
    optimizer = sgd(model)

    def audit() -> dict[str, Any]:
        return _members_differ(
            name, model(task.x.repeat(ESTIMATORS, 1, 1, 1)).softmax(-1).unflatten(0, (ESTIMATORS, -1))
        )

    repeated = _mean_of_members(model)
    return Contestant(
        name, "torch-uncertainty", model, lambda x: repeated(x.repeat(ESTIMATORS, 1, 1, 1)), f"{ESTIMATORS} members",
        audit, stepper(optimizer, cross_entropy(model)), optimizer=optimizer,
    )  # fmt: skip


class _Several:
    """Optimizers whose memory counts together."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self.optimizers = optimizers

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def state(self) -> dict[Any, Any]:
        return {key: value for optimizer in self.optimizers for key, value in optimizer.state.items()}


def _mean_of_members(model: nn.Module) -> Callable[[Tensor], Tensor]:
    @torch.no_grad()
    def predict(x: Tensor) -> Tensor:
        model.eval()
        mean = model(x).softmax(-1).unflatten(0, (ESTIMATORS, -1)).mean(0)
        model.train()
        return mean

    return predict


def _members_differ(name: str, probabilities: Tensor) -> dict[str, Any]:
    for one in range(len(probabilities)):
        for other in range(one):
            require(not torch.allclose(probabilities[one], probabilities[other]), name, "two members are the same")
    return {"members": len(probabilities)}


ROWS: dict[str, Callable[[Task], Contestant]] = {
    "five networks": five_networks,
    "MC dropout": dropout,
    "torch-uncertainty Packed-Ensembles": packed,
    "torch-uncertainty BatchEnsemble": batch_ensemble,
}
