"""How data meets a model.

Inputs are tensors, tuples or mappings. What a model returns may hold several tensors, of which one matters.
"""

import copy
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._passes import call_with
from leanbayes.errors import InputError

__all__ = [
    "batch_size",
    "call",
    "call_with",
    "map_leaves",
    "map_pairs",
    "map_tensors",
    "prediction_tensor",
    "require_function",
    "require_generator",
    "require_pair",
    "split_batch",
    "take",
]

Inputs = Any
"""A tensor, a tuple or list of positional arguments, or a mapping of keyword arguments."""

Split = Callable[[Any], Any]
"""A function of a batch that returns the pair (inputs, targets)."""


def call(function: Callable[..., Any], inputs: Inputs) -> Any:
    """Call a function on the inputs of a batch.

    A mapping gives keyword arguments, a tuple or list gives positional arguments, and anything else is the only one.

    >>> call(lambda a, b: a - b, {"b": 1, "a": 3}), call(max, (1, 2))
    (2, 2)
    """
    if isinstance(inputs, Mapping):
        return function(**inputs)
    if isinstance(inputs, tuple | list):
        return function(*inputs)
    return function(inputs)


def prediction_tensor(output: Any) -> Any:
    """Return the logits or means in a model's output: the output itself if it is a tensor, or its ``logits``.

    A pair of tensors stays a pair, because a Gaussian likelihood reads it as mean and log-variance.

    >>> prediction_tensor({"logits": torch.ones(1)})
    tensor([1.])
    """
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping) and isinstance(output.get("logits"), Tensor):
        return output["logits"]
    if isinstance(getattr(output, "logits", None), Tensor):
        return output.logits
    if isinstance(output, tuple) and len(output) == 2 and all(isinstance(part, Tensor) for part in output):
        return output
    raise InputError(
        f"the model returned a {type(output).__name__}, which is no tensor and has no `logits`; "
        "pick the tensor that matters: output=lambda returned: returned[...]"
    )


def split_batch(batch: Any) -> tuple[Inputs, Any]:
    """Return the inputs and the targets of a batch.

    A batch is a pair (inputs, targets) or a mapping of a known kind: that of MONAI, whose "image" has a "label", and
    that of Hugging Face, whose "labels" are the targets and whose other entries are the arguments of the model.

    >>> split_batch({"image": 1, "label": 2, "image_meta_dict": {}})
    (1, 2)
    >>> split_batch({"input_ids": 1, "attention_mask": 2, "labels": 3})
    ({'input_ids': 1, 'attention_mask': 2}, 3)
    """
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    example = "(batch[0], batch[1])"
    if isinstance(batch, Mapping):
        medical, hugging_face = "image" in batch and "label" in batch, "labels" in batch and len(batch) > 1
        if medical and not hugging_face:
            return batch["image"], batch["label"]
        if hugging_face and not medical:
            return {name: value for name, value in batch.items() if name != "labels"}, batch["labels"]
        names = [*batch, "...", "..."]
        example = f"(batch[{names[0]!r}], batch[{names[1]!r}])"
    got = f"a {type(batch).__name__} of {_length(batch)}"
    if isinstance(batch, Mapping):
        got += f" with the keys {list(batch)}"
    raise InputError(
        f"a batch must be a pair (inputs, targets), got {got}; say what is what, where the function takes batch=: "
        f"batch=lambda batch: {example}; or let the data set return a pair"
    )


def require_pair(parts: Any) -> tuple[Inputs, Any]:
    """Return what a function that splits batches has returned, or raise an error if that is no pair."""
    if isinstance(parts, tuple | list) and len(parts) == 2:
        return parts[0], parts[1]
    raise InputError(
        f"the function batch= must return a pair (inputs, targets), got a {type(parts).__name__} of {_length(parts)}"
    )


def batch_size(inputs: Inputs) -> int:
    """Return the number of examples: the length of the first axis, which all tensors among the inputs must share."""
    lengths: list[int] = []
    map_tensors(lambda leaf: lengths.append(leaf.shape[0]) if leaf.dim() else None, inputs)
    if not lengths:
        raise InputError(
            f"the inputs hold no tensor with a batch axis, got a {type(inputs).__name__}; give torch.as_tensor(inputs)"
        )
    if any(length != lengths[0] for length in lengths):
        raise InputError(f"the inputs must share their first axis, the batch; got the lengths {sorted(set(lengths))}")
    if lengths[0] == 0:
        raise InputError("the batch is empty; give at least one example")
    return lengths[0]


def require_generator(generator: Any) -> None:
    """Raise if what should be the source of random numbers is none, such as a seed."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise InputError(
            f"generator must be a torch.Generator, got {generator!r}; for a seed give "
            "torch.Generator().manual_seed(seed), on the device of the model"
        )


def require_function(name: str, value: Any) -> None:
    """Raise if an argument that is called is no function."""
    if not callable(value):
        raise InputError(f"{name} must be a function, got {value!r}")


def take(inputs: Inputs, rows: Tensor | slice) -> Inputs:
    """Return the inputs of some examples of the batch."""
    return map_tensors(lambda leaf: leaf[rows] if leaf.dim() else leaf, inputs)


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """Apply ``function`` to every tensor inside a value, and return a value of the same type.

    >>> map_tensors(lambda t: t + 1, {"a": [torch.zeros(1)], "b": None})
    {'a': [tensor([1.])], 'b': None}
    """
    return map_leaves(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, value)


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply ``function`` to everything inside a value that holds nothing else, and return a value of the same type.

    The function looks into tuples, named tuples, lists, mappings and dataclasses, also nested ones, such as the outputs
    of Hugging Face models. It changes no object that it gets.

    >>> map_leaves(str, (1, [2.5, None]))
    ('1', ['2.5', 'None'])
    """
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return _with_items(value, {name: map_leaves(function, item) for name, item in value.items()})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[map_leaves(function, item) for item in value])
    if isinstance(value, tuple | list):
        return type(value)([map_leaves(function, item) for item in value])
    if is_dataclass(value) and not isinstance(value, type | nn.Module):
        return _with_fields(value, {f.name: map_leaves(function, getattr(value, f.name)) for f in fields(value)})
    return function(value)


def map_pairs(function: Callable[[Tensor, Tensor], Any], first: Any, second: Any) -> Any:
    """Apply ``function`` to every tensor in ``first`` and the tensor in the same place of ``second``.

    >>> map_pairs(torch.add, (torch.zeros(1), torch.ones(1)), (torch.ones(1), torch.ones(1)))
    (tensor([1.]), tensor([2.]))
    """
    partners: list[Tensor] = []
    map_tensors(partners.append, second)
    partner = iter(partners)
    return map_tensors(lambda leaf: function(leaf, next(partner)), first)


def _with_items(mapping: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """A mapping of the same type with these items; whatever else the object holds stays."""
    if type(mapping) is dict:
        return items
    if not isinstance(mapping, MutableMapping):
        return type(mapping)(items)  # type: ignore[call-arg]
    changed = copy.copy(mapping)
    for name, item in items.items():
        changed[name] = item
    return changed


def _with_fields(value: Any, values: dict[str, Any]) -> Any:
    """A dataclass of the same type with these fields, also if it is frozen; the object itself if none differs."""
    if all(item is getattr(value, name) for name, item in values.items()):
        return value
    changed = copy.copy(value)
    for name, item in values.items():
        object.__setattr__(changed, name, item)
    return changed


def _length(batch: Any) -> str:
    if isinstance(batch, Tensor):
        return f"shape {tuple(batch.shape)}"
    return f"{len(batch)} parts" if hasattr(batch, "__len__") else "unknown length"
