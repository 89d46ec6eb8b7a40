"""Pruning: the least weights become exact zeros and lose their variance, and what is left is counted.

002 prunes by `torch.nn.utils.prune.global_unstructured` over the mean weights of its layers, biases kept, from
unpruned to 98 %, without training in between (Figure 2). Its code leaves the variances of pruned weights as they are;
here a pruned weight is a certain zero, for a zero that still has a variance saves neither memory nor time.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import singledispatch
from typing import Literal

import torch
from torch import Tensor, nn

from leanbayes._calls import Inputs
from leanbayes.baselines import LaplaceApproximation, Swag
from leanbayes.bayesian import Bayesian, Coordinates
from leanbayes.errors import InputError, NonFinite, SelectionError, ShapeMismatch, UnknownName
from leanbayes.likelihood import Categorical, Likelihood
from leanbayes.metrics.quality import accuracy
from leanbayes.posteriors import Normal
from leanbayes.prediction import predict
from leanbayes.subspace import Slot, not_norm, slots_of

__all__ = [
    "FRACTIONS",
    "Pruned",
    "PruningCurve",
    "accuracy_on",
    "is_weight",
    "make_certain",
    "packed",
    "prune",
    "pruning_curve",
    "random_tensors",
    "unpack",
]

FRACTIONS = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.96, 0.97, 0.98)
"""Those of 002's code."""

By = Literal["l1", "snr"]
Masks = Mapping[nn.Parameter, Tensor]


def is_weight(slot: Slot) -> bool:
    """Whether a parameter counts: named as torch names weights, of two axes or more, and of no norm layer.

    So linear, convolutional, recurrent, attention and embedding weights count; biases, norms and tokens do not.

    >>> [slot.name for slot in slots_of(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))) if is_weight(slot)]
    ['0.weight']
    """
    return "weight" in slot.name.rpartition(".")[2] and slot.parameter.dim() > 1 and not_norm(slot)


@dataclass(frozen=True)
class Pruned:
    """A copy of a model without its least weights.

    ``kept`` is the share of the ``weights`` that count that survive, ``nonzero`` how many of those are not zero, and
    ``masks`` names the survivors of each tensor. ``bytes`` is what the model takes with its zeros left out (see
    `packed`), ``dense_bytes`` what the one given took with every number written.

    In ``model`` the random coordinates of a `Bayesian` are the survivors alone: k scales and k positions. Where none
    is left it is the plain network. Training it further moves the zeros too; ``masks`` is there to hold them.
    """

    model: nn.Module
    kept: float
    weights: int
    nonzero: int
    bytes: int
    dense_bytes: int
    masks: dict[str, Tensor] = field(repr=False)


@dataclass(frozen=True)
class PruningCurve:
    """A measure by the fraction that is pruned, with the weights that are not zero and the bytes that are left."""

    fractions: Tensor
    values: Tensor
    nonzero: Tensor
    bytes: Tensor


def prune(model: nn.Module, fraction: float, *, by: By = "l1", eligible: Callable[[Slot], bool] = is_weight) -> Pruned:
    """Set ``round(fraction · weights)`` of the weights to zero, those of least importance in the whole model.

    The model given is left as it was. Of an ensemble all members are ranked together.

    Args:
        model: any module; the means of a `Bayesian`, `Swag` or `LaplaceApproximation` are ranked, and what is pruned
            loses its variance too.
        fraction: from 0 to 1.
        by: "l1" ranks by |μ|; "snr" by |μ|/σ. A weight that is not random has an infinite signal-to-noise ratio, or
            none if it is zero: so certain zeros go first, then random weights by their ratio, then the other certain
            ones by |μ|. Ties go by |μ|, then by position.
        eligible: which tensors count.

    >>> found = prune(nn.Linear(10, 10), 0.9)
    >>> found.nonzero, found.kept, int(found.model.weight.count_nonzero()), int(found.model.bias.count_nonzero())
    (10, 0.1, 10, 10)
    """
    return _Ranking(model, by, eligible).prune(fraction)


def pruning_curve(
    model: nn.Module,
    measure: Callable[[nn.Module], float | Tensor],
    fractions: Sequence[float] = FRACTIONS,
    *,
    by: By = "l1",
    eligible: Callable[[Slot], bool] = is_weight,
) -> PruningCurve:
    """What a measure gives of the model at each fraction pruned (002, Figure 2). The weights are ranked once.

    Args:
        model: as for `prune`; left as it was.
        measure: of a pruned copy, such as `accuracy_on` of test data.
        fractions: each from 0 to 1.
        by: "l1" or "snr".
        eligible: which tensors count.

    >>> pruning_curve(nn.Linear(4, 2), lambda m: m.weight.count_nonzero(), [0.0, 0.5, 1.0]).values.tolist()
    [8.0, 4.0, 0.0]
    """
    ranking = _Ranking(model, by, eligible)
    if not len(fractions):
        raise InputError("give at least one fraction")
    for fraction in fractions:
        _check_fraction(fraction)
    values, nonzero, sizes = [], [], []
    for fraction in fractions:
        found = ranking.prune(fraction)
        values.append(float(measure(found.model)))
        nonzero.append(found.nonzero)
        sizes.append(found.bytes)
    return PruningCurve(
        torch.tensor(list(fractions), dtype=torch.float64),
        torch.tensor(values, dtype=torch.float64),
        torch.tensor(nonzero),
        torch.tensor(sizes),
    )


def accuracy_on(
    x: Inputs,
    y: Tensor,
    *,
    likelihood: Likelihood | None = None,
    samples: int = 32,
    batch_size: int | None = None,
    seed: int = 0,
) -> Callable[[nn.Module], float]:
    """A measure for `pruning_curve`: the accuracy of `predict` on ``x`` and ``y``, with the same noise every time.

    >>> accuracy_on(torch.tensor([[0.0, 1.0], [2.0, 0.0]]), torch.tensor([1, 0]))(nn.Identity())
    1.0
    """
    likelihood = likelihood or Categorical()

    def measure(model: nn.Module) -> float:
        found = predict(
            model,
            x,
            likelihood=likelihood,
            samples=samples,
            batch_size=batch_size,
            generator=seeded(model, seed),
        )
        ignored = likelihood.ignore_index
        return float(accuracy(found.mean, y.to(found.mean.device), ignore_index=ignored))

    return measure


def packed(module: nn.Module) -> dict[str, Tensor]:
    """Every tensor of a module once, zeros left out where that is smaller: a sparse file's contents.

    A tensor becomes ``<name>.values`` and ``<name>.positions`` (flat, int32; int64 from 2³¹ entries), or stays whole.

    >>> {name: tuple(part.shape) for name, part in packed(prune(nn.Linear(10, 10), 0.9).model).items()}
    {'weight.values': (10,), 'weight.positions': (10,), 'bias': (10,)}
    """
    found: dict[str, Tensor] = {}
    for name, value in _state(module).items():
        flat = value.flatten()
        places = flat.nonzero().squeeze(1).to(_index_dtype(value))
        if places.numel() * (value.element_size() + places.element_size()) < _size(value):
            found |= {f"{name}.values": flat[places.long()], f"{name}.positions": places}
        else:
            found[name] = value.contiguous()
    return found


def unpack(tensors: Mapping[str, Tensor], module: nn.Module) -> None:
    """Write what `packed` gave into a module whose tensors have the same names and shapes.

    >>> thin, other = prune(nn.Linear(10, 10), 0.9).model, nn.Linear(10, 10)
    >>> unpack(packed(thin), other)
    >>> bool((other.weight == thin.weight).all())
    True
    """
    for name, value in _state(module).items():
        if name in tensors:
            whole = tensors[name]
        elif f"{name}.values" in tensors:
            flat = torch.zeros(value.numel(), dtype=value.dtype, device=value.device)
            places = tensors[f"{name}.positions"].to(value.device, torch.int64)
            whole = flat.index_copy(0, places, tensors[f"{name}.values"].to(value)).view(value.shape)
        else:
            raise ShapeMismatch(f"there is no {name!r} among the {len(tensors)} packed tensors")
        if whole.shape != value.shape:
            raise ShapeMismatch(f"{name!r} has shape {tuple(value.shape)} here and {tuple(whole.shape)} where packed")
        value.copy_(whole)


def seeded(model: object, seed: int) -> torch.Generator:
    """A generator where the model's parameters are."""
    first = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    made = torch.Generator() if first is None else torch.Generator(first.device)
    return made.manual_seed(seed)


class _Ranking:
    """The weights of a model from the least to the most important."""

    def __init__(self, model: nn.Module, by: str, eligible: Callable[[Slot], bool]) -> None:
        if by not in ("l1", "snr"):
            raise UnknownName.of("importance", by, ["l1", "snr"])
        every = slots_of(model)
        self.slots = [slot for slot in every if slot.parameter.numel() and eligible(slot)]
        if not self.slots:
            raise SelectionError(
                f"none of the model's {len(every)} parameters is a weight that may be pruned; the first are "
                f"{[slot.name for slot in every[:3]]}; say which count: eligible=lambda slot: ..."
            )
        self.model = model
        self.sizes = [slot.parameter.numel() for slot in self.slots]
        self.dense = sum(map(_size, _state(model).values()))
        with torch.no_grad():
            laws = {p: (mean, variance) for part in model.modules() for p, mean, variance in random_tensors(part)}
            if by == "snr" and not laws:
                raise InputError(
                    f"no weight of this {type(model).__name__} is random, so none has a signal-to-noise ratio; "
                    'prune by="l1"'
                )
            self.order = self._order(laws, by)

    def prune(self, fraction: float) -> Pruned:
        """The copy without so many."""
        _check_fraction(fraction)
        total = sum(self.sizes)
        keep = torch.ones(total, dtype=torch.bool, device=self.order.device)
        keep[self.order[: round(fraction * total)]] = False
        masks = {
            slot.name: part.view(slot.parameter.shape).to(slot.parameter.device)
            for slot, part in zip(self.slots, keep.split(self.sizes), strict=True)
        }
        model = copy.deepcopy(self.model)
        own = dict(model.named_parameters())
        by_parameter = {own[name]: mask for name, mask in masks.items()}
        with torch.no_grad():
            for parameter, mask in by_parameter.items():
                parameter.masked_fill_(~mask, 0)
            for part in list(model.modules()):
                make_certain(part, by_parameter)
        nonzero = sum(int(parameter.count_nonzero()) for parameter in by_parameter)
        model = _without_empty(model)
        size = sum(map(_size, packed(model).values()))
        return Pruned(model, int(keep.sum()) / total, total, nonzero, size, self.dense, masks)

    def _order(self, laws: Mapping[nn.Parameter, tuple[Tensor, Tensor]], by: str) -> Tensor:
        place = self.slots[0].parameter.device
        magnitudes, ratios = [], []
        for slot in self.slots:
            mean, variance = laws.get(slot.parameter, (slot.parameter, slot.parameter.new_zeros(())))
            magnitude = mean.detach().abs()
            magnitude = magnitude.to(torch.promote_types(magnitude.dtype, torch.float32))
            if not (torch.isfinite(magnitude).all() and torch.isfinite(variance).all()):
                raise NonFinite(f"{slot.name!r} has NaN or infinite values; there is no order among them")
            magnitudes.append(magnitude.flatten().to(place))
            if by == "snr":
                certain = torch.where(magnitude > 0, torch.inf, 0.0)
                ratio = torch.where(variance > 0, magnitude / variance.sqrt(), certain)
                ratios.append(ratio.flatten().to(place))
        order = _joined(magnitudes).argsort(stable=True)
        return order[_joined(ratios)[order].argsort(stable=True)] if ratios else order


@singledispatch
def random_tensors(part: nn.Module) -> Iterator[tuple[nn.Parameter, Tensor, Tensor]]:  # noqa: ARG001
    """Each parameter that a module makes random, with its mean and variance. For one of your own: register it."""
    return iter(())


@random_tensors.register
def _(part: Bayesian) -> Iterator[tuple[nn.Parameter, Tensor, Tensor]]:
    own = dict(part.model.named_parameters())
    for name, weight in part.weights().items():
        yield own[name], weight.mean, weight.widened().variance()


@random_tensors.register
def _(part: Swag) -> Iterator[tuple[nn.Parameter, Tensor, Tensor]]:
    own, rows = dict(part.model.named_parameters()), min(int(part.collected), part.rank)
    if int(part.collected) < 2:
        raise InputError(f"{int(part.collected)} weights were collected: call collect() at least twice, then prune")
    variance = part.variance.clamp_min(0)
    if part.rank:
        variance = variance / 2 + part.deviations[:rows].square().sum(0) / (2 * (rows - 1))
    sizes = [own[name].numel() for name in part.names]
    for name, mean, each in zip(part.names, part.mean.split(sizes), variance.split(sizes), strict=True):
        yield own[name], mean.view(own[name].shape), each.view(own[name].shape)


@random_tensors.register
def _(part: LaplaceApproximation) -> Iterator[tuple[nn.Parameter, Tensor, Tensor]]:
    own, sizes = dict(part.model.named_parameters()), list(part.coordinates.values())
    variance = part.scale.square().sum(1)
    for name, places, each in zip(part.coordinates, part.positions.split(sizes), variance.split(sizes), strict=True):
        flat = each.new_zeros(own[name].numel()).index_copy(0, places, each)
        yield own[name], own[name], flat.view(own[name].shape)


@singledispatch
def make_certain(part: nn.Module, kept: Masks) -> None:
    """Take away, in place, the randomness of what is not kept. For one of your own: register it."""


@make_certain.register
def _(part: Bayesian, kept: Masks) -> None:
    own = dict(part.model.named_parameters())
    if isinstance(part.posterior, Normal) and part.posterior.per == "filter":  # what is left of a filter has its own
        for name, random in part.parts():
            random.rho = nn.Parameter(random.rho.detach().expand(own[name].shape).clone(), random.rho.requires_grad)
        part.posterior = replace(part.posterior, per="weight")
    for key, (name, random) in zip(list(part.coordinates), list(part.parts()), strict=True):
        if own[name] not in kept:
            continue
        mask = kept[own[name]].flatten()
        stays = mask if random.index is None else mask[random.index.long()]
        if stays.all():
            continue
        if not stays.any():
            del part.coordinates[key]
            continue
        if random.index is None:
            shape, index = own[name].shape, stays.nonzero().squeeze(1).to(_index_dtype(own[name]))
        else:
            shape, index = random.index.shape, random.index[stays]
        memory = None if random.memory is None else random.memory.expand(shape).flatten()[stays]
        shrunk = Coordinates(random.rho.detach().expand(shape).flatten()[stays], index, memory)
        shrunk.rho.requires_grad_(random.rho.requires_grad)
        part.coordinates[key] = shrunk.train(random.training)
    if isinstance(part.prior, Mapping):  # a pattern that matches nothing more is an error when the model is built again
        names = [name for name, _ in part.parts()]
        part.prior = {glob: law for glob, law in part.prior.items() if any(fnmatchcase(name, glob) for name in names)}


@make_certain.register
def _(part: Swag, kept: Masks) -> None:
    own = dict(part.model.named_parameters())
    masks = [kept.get(own[name], torch.ones_like(own[name], dtype=torch.bool)).flatten() for name in part.names]
    gone = ~_joined([mask.to(part.mean.device) for mask in masks])
    for tensor in (part.mean, part.variance, part.deviations):
        tensor.masked_fill_(gone, 0)


@make_certain.register
def _(part: LaplaceApproximation, kept: Masks) -> None:
    own, sizes = dict(part.model.named_parameters()), list(part.coordinates.values())
    for name, places, rows in zip(part.coordinates, part.positions.split(sizes), part.scale.split(sizes), strict=True):
        if own[name] in kept:
            rows.masked_fill_(~kept[own[name]].flatten()[places].unsqueeze(1), 0)


def _without_empty(model: nn.Module) -> nn.Module:
    """Models with no random weight left become plain ones."""
    for name, part in list(model.named_modules()):
        if isinstance(part, Bayesian) and not len(part.coordinates):
            if not name:
                return part.model
            model.set_submodule(name, part.model)
    return model


def _check_fraction(fraction: float) -> None:
    if not (isinstance(fraction, int | float) and 0 <= fraction <= 1):
        raise InputError(f"the fraction to prune must be from 0 to 1 (0.9 is 90 %), got {fraction!r}")


def _state(module: nn.Module) -> dict[str, Tensor]:
    """Every tensor that a file would hold, tied ones once."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, value in module.state_dict(keep_vars=True).items():
        if isinstance(value, Tensor):
            found.setdefault(id(value), (name, value.detach()))
    return dict(found.values())


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _joined(parts: list[Tensor]) -> Tensor:
    dtype = parts[0].dtype
    for part in parts:
        dtype = torch.promote_types(dtype, part.dtype)
    return torch.cat([part.to(dtype) for part in parts])


def _index_dtype(tensor: Tensor) -> torch.dtype:
    return torch.int32 if tensor.numel() < 2**31 else torch.int64
