"""The parameters of a model as slots, among which a subspace chooses."""

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from leanbayes.errors import InputError

__all__ = ["Eligible", "Slot", "anything", "last_layer", "matches", "not_norm", "position_dtype", "slots_of"]

_NORMS = (
    nn.modules.batchnorm._NormBase,  # batch and instance norms of every rank
    nn.GroupNorm,
    nn.LayerNorm,
    nn.LocalResponseNorm,
    nn.RMSNorm,
)


@dataclass(frozen=True)
class Slot:
    """A parameter of a model, with its name and the module that owns it."""

    name: str
    parameter: nn.Parameter
    module: nn.Module

    @property
    def layer(self) -> str:
        """The name of the module that owns the parameter."""
        return self.name.rpartition(".")[0]

    @property
    def padding(self) -> slice | None:
        """The flat positions of the padding row of an embedding, which never learns; None for other parameters."""
        row = getattr(self.module, "padding_idx", None)
        if row is None or not isinstance(self.module, nn.Embedding | nn.EmbeddingBag):
            return None
        width = self.parameter.shape[1]
        return slice(row * width, (row + 1) * width)

    @property
    def size(self) -> int:
        """The number of coordinates that may be random."""
        return self.parameter.numel() - (self.parameter.shape[1] if self.padding else 0)

    @property
    def whole(self) -> Tensor | None:
        """The selection of all coordinates that may be random."""
        if self.padding is None:
            return None
        free = torch.ones(self.parameter.numel(), dtype=torch.bool, device=self.parameter.device)
        free[self.padding] = False
        return free.nonzero().squeeze(1).to(position_dtype(free.numel()))


Eligible = Callable[[Slot], bool]
"""Says whether the coordinates of a slot may be random."""


def anything(slot: Slot) -> bool:  # noqa: ARG001
    """Return True: every trainable parameter may be random."""
    return True


def not_norm(slot: Slot) -> bool:
    """Return whether a parameter belongs to a layer that is no normalisation layer.

    Use it as ``eligible=not_norm`` to keep the weights of norms deterministic.

    >>> [slot.name for slot in slots_of(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))) if not_norm(slot)]
    ['0.weight', '0.bias']
    """
    return not isinstance(slot.module, _NORMS)


def slots_of(model: nn.Module) -> list[Slot]:
    """Return all floating-point parameters, also frozen ones, each once. A tied one has its first name."""
    owners = dict(model.named_modules())
    slots = []
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise InputError(f"{name!r} has no shape yet; run one batch through the lazy model before you convert it")
        if parameter.is_floating_point():
            slots.append(Slot(name, parameter, owners[name.rpartition(".")[0]]))
    return slots


def matches(name: str, pattern: str) -> bool:
    """Return whether a glob matches the name of a parameter, or of a module around it."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:depth]), pattern) for depth in range(1, len(parts) + 1))


def position_dtype(size: int) -> torch.dtype:
    """Return the dtype of flat positions in a tensor of ``size`` numbers: int32 where that is enough."""
    return torch.int32 if size < 2**31 else torch.int64


def last_layer(model: nn.Module) -> str:
    """Return the name of the last module that holds a weight matrix or kernel.

    >>> last_layer(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1), nn.BatchNorm1d(1)))
    '2'
    """
    names: list[str] = [
        name
        for name, module in model.named_modules()
        if any(parameter.dim() > 1 for parameter in module.parameters(recurse=False))
        or parametrize.is_parametrized(module, "weight")
    ]
    if not names or not names[-1]:
        raise InputError("the model has no inner layer with a weight matrix; name the random layers by globs")
    return names[-1]
