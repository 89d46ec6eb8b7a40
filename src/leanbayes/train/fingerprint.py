"""The fingerprint of a training: all that shapes its result, so that no checkpoint is continued by another training.

It is JSON. Settings are described by their types and values, long lists and tensors by a checksum. Only weights are
left out, because those of the checkpoint replace those that the model has.
"""

import functools
import inspect
import json
import math
import random
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset

from leanbayes._files import checksum, tensor_checksum
from leanbayes.bayesian import Bayesian
from leanbayes.objective import Schedule
from leanbayes.subspace import Scatter, scatters

__all__ = [
    "VERSION",
    "Fingerprint",
    "describe_model",
    "describe_optimizer",
    "describe_rates",
    "describe_weights",
    "described",
    "differences",
]

VERSION = 2  # of the fingerprint; checkpoints of version 0.1 have none
_DEPTH, _LONG, _FEW = 6, 64, 8
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
_CHANGING = {"last_epoch", "optimizer", "training", "kl_weight", "lr", "initial_lr", "generator", "data_source"}


@dataclass(frozen=True)
class Fingerprint:
    """What `fit` compares with a checkpoint before it goes on from there.

    Attributes:
        settings: all that shapes the result, by name.
        information: what may differ without making another training: the number of threads and the device. Sums in
            another order are rounded differently, so the result is the same bit for bit only if these agree as well.
    """

    settings: dict[str, Any]
    information: dict[str, Any]

    @classmethod
    def of(cls, settings: Mapping[str, Any], device: torch.device) -> "Fingerprint":
        """Return the fingerprint of these settings, as a file would give it back."""
        plain: dict[str, Any] = json.loads(json.dumps({"version": VERSION} | dict(settings)))
        return cls(plain, {"threads": torch.get_num_threads(), "device": device.type, "torch": torch.__version__})


def differences(theirs: Any, ours: Any, name: str = "") -> dict[str, tuple[Any, Any]]:
    """Return the fields that differ between two descriptions, by their path, with both values.

    >>> differences({"optimizer": {"lr": 0.1, "type": "SGD"}}, {"optimizer": {"lr": 0.2, "type": "SGD"}})
    {'optimizer.lr': (0.1, 0.2)}
    """
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        if "type" in theirs and "type" in ours and theirs["type"] != ours["type"]:
            return {f"{name}.type": (theirs["type"], ours["type"])}
        keys = [*theirs, *(key for key in ours if key not in theirs)]
        parts = [differences(theirs.get(k), ours.get(k), f"{name}.{k}" if name else str(k)) for k in keys]
        return {key: pair for part in parts for key, pair in part.items()}
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        pairs = enumerate(zip(theirs, ours, strict=True))
        return {key: value for i, (a, b) in pairs for key, value in differences(a, b, f"{name}[{i}]").items()}
    return {} if theirs == ours else {name: (theirs, ours)}


def describe_model(model: nn.Module, moving: bool) -> dict[str, Any]:
    """Describe a model without its weights.

    Args:
        model: a `Bayesian` or a plain module.
        moving: whether sparse weights move in training, so that their positions are no setting.
    """
    inner = model.model if isinstance(model, Bayesian) else model
    named = [(name, tuple(value.shape), value.requires_grad) for name, value in model.named_parameters()]
    description: dict[str, Any] = {
        "architecture": {
            "parameters": sum(math.prod(shape) for _, shape, _ in named),
            "checksum": checksum((_ADDRESS.sub("", repr(inner)) + repr(named)).encode()),
        },
        "dtype": sorted({str(value.dtype).removeprefix("torch.") for value in model.parameters()}),
        "sparse": {name: _stored(scatter, moving) for name, scatter in scatters(inner).items()},
    }
    if not isinstance(model, Bayesian):
        return description
    parts = dict(model.parts())
    return description | {
        "posterior": described(model.posterior),
        "prior": described(model.prior),
        "propagate": described(model.propagate),
        "kl": described(model.kl_estimator),
        "subspace": {name: "all" if part.index is None else _positions(part.index) for name, part in parts.items()},
        "trained scales": [name for name, part in parts.items() if part.rho.requires_grad],
    }


def describe_optimizer(optimizer: Optimizer, module: nn.Module) -> dict[str, Any]:
    """Describe an optimizer by its type and, for each group, its settings and the parameters that it trains."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    groups = []
    for group in optimizer.param_groups:
        members = [names.get(id(parameter), "?") for parameter in group["params"]]
        plain = {key: described(value) for key, value in group.items() if key not in {"params", *_CHANGING}}
        rate = described(group.get("initial_lr", group.get("lr")))  # a schedule may have changed "lr" already
        groups.append({"lr": rate, "parameters": _shortened(members)} | plain)
    return {"type": type(optimizer).__name__, "groups": groups}


def describe_rates(schedule: LRScheduler | None, steps: int) -> Any:
    """Describe the schedule of the learning rate; functions also by their values."""
    if schedule is None:
        return None
    description: dict[str, Any] = {"type": type(schedule).__name__} | _attributes(schedule, 0)
    for inner in getattr(schedule, "_schedulers", ()):
        description.setdefault("parts", []).append(describe_rates(inner, steps))
    for factor in getattr(schedule, "lr_lambdas", ()):
        values = [described(float(factor(steps * quarter // 4))) for quarter in range(5)]
        description.setdefault("factors", []).append(values)
    return description


def describe_weights(schedule: Schedule) -> Any:
    """Describe the schedule of the KL weight by its settings and its values at eleven moments."""
    return {"values": [described(float(schedule(i / 10))) for i in range(11)], "schedule": described(schedule)}


def described(value: Any, depth: int = 0) -> Any:
    """Return a description that JSON can hold and that is the same in another process.

    >>> described(0.5), described(torch.arange(3)), described(max)
    (0.5, [0, 1, 2], {'function': 'max'})
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if depth > _DEPTH or isinstance(value, _GENERATORS):
        return {"type": type(value).__name__}
    if isinstance(value, Tensor | np.ndarray):
        return _numbers(torch.as_tensor(value))
    if isinstance(value, torch.dtype | torch.device):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): described(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | range):
        return _shortened([described(item, depth + 1) for item in value])
    if isinstance(value, set | frozenset):
        return _shortened(sorted((described(item, depth + 1) for item in value), key=repr))
    if isinstance(value, Dataset | DataLoader):
        return {"type": type(value).__name__, "length": _length(value)}
    return _described_object(value, depth)


def _described_object(value: Any, depth: int) -> Any:
    if isinstance(value, functools.partial):
        given = [described(value.args, depth + 1), described(value.keywords, depth + 1)]
        return {"function": described(value.func, depth + 1), "arguments": given}
    if isinstance(value, type) or inspect.isbuiltin(value):
        return {"function": value.__qualname__}
    if isinstance(value, types.MethodType):
        return {"function": value.__func__.__qualname__, "of": described(value.__self__, depth + 1)}
    if isinstance(value, types.FunctionType):
        return _described_function(value, depth)
    name = type(value).__name__
    if is_dataclass(value):
        return {"type": name} | {f.name: described(getattr(value, f.name), depth + 1) for f in fields(value)}
    if isinstance(value, Distribution):  # it may compute some of its arguments only when they are asked for
        arguments = {
            key: described(item, depth + 1) for key, item in vars(value).items() if key in value.arg_constraints
        }
        return {"type": name} | arguments | _attributes(value, depth)
    if isinstance(value, nn.Module):
        buffers = {key: described(item, depth + 1) for key, item in value.named_buffers(recurse=False)}
        learned = {key: list(item.shape) for key, item in value.named_parameters(recurse=False)}
        parts = {key: described(item, depth + 1) for key, item in value.named_children()}
        return {"type": name, "buffers": buffers, "learned": learned, "parts": parts} | _attributes(value, depth)
    return {"type": name} | _attributes(value, depth)


def _described_function(function: types.FunctionType, depth: int) -> Any:
    """Describe a function by its name, the names and numbers in it, and what it has closed over."""
    code = function.__code__
    constants = [part for part in code.co_consts if isinstance(part, int | float | str) and part != function.__doc__]
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell.cell_contents is not function]
    ours = function.__module__.startswith("leanbayes.")  # its name is enough, and its words may change
    return {
        "function": function.__qualname__,
        "names": [] if ours else list(code.co_names),
        "constants": [] if ours else described(constants, depth + 1),
        "closure": described(cells, depth + 1),
        "defaults": described(function.__defaults__, depth + 1),
    }


def _attributes(value: Any, depth: int) -> dict[str, Any]:
    """Describe the public attributes of an object that are settings."""
    own: dict[str, Any] = getattr(value, "__dict__", {})
    public = {name: item for name, item in own.items() if not name.startswith("_") and name not in _CHANGING}
    return {name: described(item, depth + 1) for name, item in public.items()}


def _numbers(values: Tensor) -> Any:
    if values.numel() <= _FEW:
        return described(values.detach().tolist())
    return {"shape": list(values.shape), "checksum": tensor_checksum(values)}


def _stored(scatter: Scatter, moving: bool) -> Any:
    block = {"block": scatter.block} if scatter.block > 1 else {}  # older checkpoints know no blocks
    return _positions(scatter.index, moving) | block


def _positions(index: Tensor, moving: bool = False) -> Any:
    positions = {"number": index.numel()}
    return positions if moving else positions | {"checksum": tensor_checksum(index.long())}


def _shortened(values: list[Any]) -> Any:
    if len(values) <= _LONG:
        return values
    return {"length": len(values), "checksum": checksum(json.dumps(values).encode())}


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except TypeError:
        return None
