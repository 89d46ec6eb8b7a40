"""Pruning sets the least important weights to exact zeros, takes their variance away, and counts what is left.

VDP++ prunes with `torch.nn.utils.prune.global_unstructured` over the mean weights of its layers, without training in
between, and keeps all biases (Figure 2). Its code leaves the variances of pruned weights as they are. Here a pruned
weight is a certain zero, because a zero that still has a variance saves neither memory nor time.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError, NonFinite, SelectionError, UnknownName
from leanbayes.evaluation.packing import packed, size_of, state_of
from leanbayes.prediction import Predictor
from leanbayes.subspace import Slot, not_norm, slots_of

__all__ = ["By", "Pruned", "Ranking", "check_fraction", "is_weight", "prune"]

By = Literal["l1", "snr"]


def is_weight(slot: Slot) -> bool:
    """Return whether a parameter is a weight that may be pruned.

    A weight has a name as torch names weights, has two axes or more, and belongs to no norm layer. Linear,
    convolutional, recurrent, attention and embedding weights are weights; biases, norms and tokens are not.

    >>> [slot.name for slot in slots_of(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))) if is_weight(slot)]
    ['0.weight']
    """
    return "weight" in slot.name.rpartition(".")[2] and slot.parameter.dim() > 1 and not_norm(slot)


@dataclass(frozen=True)
class Pruned:
    """A copy of a model without its least important weights.

    Training the copy moves the zeros too, unless the caller holds them with ``masks``.

    Attributes:
        model: the copy. The random coordinates of a `Bayesian` are the surviving weights alone: k scales and k
            positions. If none is left, it is the plain network.
        kept: the share of the weights that survive.
        weights: how many weights could be pruned.
        nonzero: how many of them are not zero now.
        bytes: the size of the copy with its zeros left out (see `packed`).
        dense_bytes: the size of the given model with every number written.
        masks: which entries of each tensor survive, by the name of the tensor.
    """

    model: nn.Module
    kept: float
    weights: int
    nonzero: int
    bytes: int
    dense_bytes: int
    masks: dict[str, Tensor] = field(repr=False)


def prune(model: nn.Module, fraction: float, *, by: By = "l1", eligible: Callable[[Slot], bool] = is_weight) -> Pruned:
    """Return a copy of a model in which the least important weights of the whole model are zero.

    The given model is left as it was. The members of an ensemble are ranked together.

    Args:
        model: any module. The means of a `Bayesian`, `Swag` or `LaplaceApproximation` are ranked, and a pruned weight
            loses its variance too. A predictor of your own says what is random in ``random_tensors``.
        fraction: how many weights become zero, from 0 to 1; the number is ``round(fraction · weights)``.
        by: "l1" ranks by |μ|, and "snr" by the signal-to-noise ratio |μ|/σ. The ratio of a weight that is not random is
            infinite, or 0 if the weight is zero. So certain zeros go first, then random weights by their ratio, and
            then the other certain weights by |μ|. Ties go by |μ|, then by position.
        eligible: says which tensors hold weights that may be pruned.

    >>> pruned = prune(nn.Linear(10, 10), 0.9)
    >>> pruned.nonzero, pruned.kept, int(pruned.model.weight.count_nonzero()), int(pruned.model.bias.count_nonzero())
    (10, 0.1, 10, 10)
    """
    return Ranking(model, by, eligible).prune(fraction)


class Ranking:
    """The order of the weights of a model from the least to the most important, for one or several fractions."""

    def __init__(self, model: nn.Module, by: str, eligible: Callable[[Slot], bool]) -> None:
        if by not in ("l1", "snr"):
            raise UnknownName.of("importance", by, ["l1", "snr"])
        every = slots_of(model)
        self.slots = [slot for slot in every if slot.parameter.numel() and eligible(slot)]
        if not self.slots:
            raise SelectionError(
                f"none of the model's {len(every)} parameters is a weight that may be pruned; the first are "
                f"{[slot.name for slot in every[:3]]}; say which may be: eligible=lambda slot: ..."
            )
        self.model = model
        self.sizes = [slot.parameter.numel() for slot in self.slots]
        self.dense = sum(map(size_of, state_of(model).values()))
        with torch.no_grad():
            moments = [entry for part in _random_modules(model) for entry in part.random_tensors()]
            laws = {parameter: (mean, variance) for parameter, mean, variance in moments}
            if by == "snr" and not laws:
                raise InputError(
                    f"no weight of this {type(model).__name__} is random, so none has a signal-to-noise ratio; "
                    'prune by="l1"'
                )
            self.order = self._order(laws, by)

    def prune(self, fraction: float) -> Pruned:
        """Return the copy without this fraction of the weights."""
        check_fraction(fraction)
        total = sum(self.sizes)
        keep = torch.ones(total, dtype=torch.bool, device=self.order.device)
        keep[self.order[: round(fraction * total)]] = False
        masks = {
            slot.name: part.view(slot.parameter.shape).to(slot.parameter.device)
            for slot, part in zip(self.slots, keep.split(self.sizes), strict=True)
        }
        model = copy.deepcopy(self.model)
        parameters = dict(model.named_parameters())
        by_parameter = {parameters[name]: mask for name, mask in masks.items()}
        with torch.no_grad():
            for parameter, mask in by_parameter.items():
                parameter.masked_fill_(~mask, 0)
            for part in _random_modules(model):
                part.make_certain(by_parameter)
        nonzero = sum(int(parameter.count_nonzero()) for parameter in by_parameter)
        model = _without_empty(model)
        size = sum(map(size_of, packed(model).values()))
        return Pruned(model, int(keep.sum()) / total, total, nonzero, size, self.dense, masks)

    def _order(self, laws: Mapping[nn.Parameter, tuple[Tensor, Tensor]], by: str) -> Tensor:
        device = self.slots[0].parameter.device
        magnitudes, ratios = [], []
        for slot in self.slots:
            mean, variance = laws.get(slot.parameter, (slot.parameter, slot.parameter.new_zeros(())))
            magnitude = mean.detach().abs()
            magnitude = magnitude.to(torch.promote_types(magnitude.dtype, torch.float32))
            if not (torch.isfinite(magnitude).all() and torch.isfinite(variance).all()):
                raise NonFinite(
                    f"{slot.name!r} has NaN or infinite values, which have no order; check the training of the model"
                )
            magnitudes.append(magnitude.flatten().to(device))
            if by == "snr":
                certain = torch.where(magnitude > 0, torch.inf, 0.0)
                ratio = torch.where(variance > 0, magnitude / variance.sqrt(), certain)
                ratios.append(ratio.flatten().to(device))
        order = _joined(magnitudes).argsort(stable=True)
        return order[_joined(ratios)[order].argsort(stable=True)] if ratios else order


def _random_modules(model: nn.Module) -> list[Bayesian | Predictor]:
    return [part for part in model.modules() if isinstance(part, Bayesian | Predictor)]


def _without_empty(model: nn.Module) -> nn.Module:
    """Replace every `Bayesian` that has no random weight left by its plain network."""
    for name, part in list(model.named_modules()):
        if isinstance(part, Bayesian) and not len(part.coordinates):
            if not name:
                return part.model
            model.set_submodule(name, part.model)
    return model


def check_fraction(fraction: float) -> None:
    """Raise unless the fraction is a number from 0 to 1."""
    if not (isinstance(fraction, int | float) and 0 <= fraction <= 1):
        raise InputError(f"the fraction to prune must be from 0 to 1 (0.9 is 90 %), got {fraction!r}")


def _joined(parts: list[Tensor]) -> Tensor:
    dtype = parts[0].dtype
    for part in parts:
        dtype = torch.promote_types(dtype, part.dtype)
    return torch.cat([part.to(dtype) for part in parts])
