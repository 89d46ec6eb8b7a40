"""How an operation finds its rule if its tensors are random and have no values to compute with."""

import functools
import inspect
import sys
import threading
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from leanbayes._ops.questions import QUESTIONS
from leanbayes._ops.sparse_tensor import SparseTensor
from leanbayes.errors import MissingRule
from leanbayes.propagate.registry import Registry, Rule

__all__ = ["Memory", "apply_rule", "leaves_of", "missing", "refuse_kernel"]

# The mean answers operations that only ask for shape, type or device, or that make a new tensor of the same kind.
_LIKE = "zeros_like ones_like empty_like full_like rand_like randn_like"
_NEW = "new_zeros new_ones new_empty new_full new_tensor is_complex is_floating_point"
_ANSWERED_BY_THE_MEAN = {
    *(QUESTIONS - {Tensor.__hash__, Tensor.data_ptr, Tensor.requires_grad.__get__}),  # type: ignore[attr-defined]
    *(getattr(torch, name) for name in _LIKE.split()),
    *(getattr(Tensor, name) for name in _NEW.split()),
}


class Memory:
    """The memory that a tensor and its views share; ``version`` counts how often it was written to."""

    version = 0


class _Nesting(threading.local):
    """How many rules are at work in this thread; a rule may call operations that have rules."""

    depth = 0


_nesting = _Nesting()


def apply_rule(kind: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Apply the rule of ``kind.rules`` for ``func``. For operations in place, the result is written back.

    ``kind`` is a class of tensors with an ``expected``, a ``setting``, a ``memory`` and its ``version``, and a method
    ``overwrite``.
    """
    kwargs = kwargs or {}
    if func in _ANSWERED_BY_THE_MEAN:
        if len(args) == 1 and not kwargs and isinstance(args[0], kind):  # nearly always
            return func(args[0].expected)
        args, kwargs = tree_map(lambda value: value.expected if isinstance(value, kind) else value, (args, kwargs))
        return func(*args, **kwargs)
    leaves = leaves_of((args, kwargs))
    if any(isinstance(leaf, SparseTensor) for leaf in leaves):
        args, kwargs = tree_map(_dense_of, (args, kwargs))
    random = [leaf for leaf in leaves if isinstance(leaf, kind)]
    if any(tensor.version != tensor.memory.version for tensor in random):
        missing(func, random[0], "a view of one of its arguments was written to in place, which views do not follow")
    operation, in_place = _out_of_place(func)
    if operation in _has_inplace_argument():
        bound = _signature(operation).bind(*args, **kwargs)
        in_place = bound.arguments.pop("inplace", False)
        args, kwargs = bound.args, bound.kwargs
    rules: Registry = kind.rules
    rule = rules.find(operation)
    if rule is None or kwargs.get("out") is not None:
        missing(func, random[0])
    if in_place and not isinstance(args[0], kind):
        missing(func, random[0], "a plain tensor cannot take random values in place; write it as an assignment")
    try:
        result = _computed(rule, operation, args, kwargs)
    except TypeError:
        if _fits(rule.function, operation, *args, **kwargs):
            raise
        missing(func, random[0], "it is called in a way that its rule does not know")
    if not rule.composite and _nesting.depth == 0:
        _note_uses(func, random, [leaf for leaf in leaves_of(result) if isinstance(leaf, kind)])
    if in_place:
        args[0].overwrite(result)
        return args[0]
    return result


def leaves_of(value: Any) -> list[Any]:
    """Return what nested sequences and mappings hold, as torch's slower `tree_leaves` does for all kinds of trees."""
    if isinstance(value, tuple | list):
        return [leaf for part in value for leaf in leaves_of(part)]
    if isinstance(value, Mapping):
        return [leaf for part in value.values() for leaf in leaves_of(part)]
    return [value]


def _computed(rule: Rule, operation: Any, args: Any, kwargs: Any) -> Any:
    _nesting.depth += not rule.composite
    try:
        return rule.function(operation, *args, **kwargs)
    finally:
        _nesting.depth -= not rule.composite


def _note_uses(func: Any, random: list[Any], results: list[Any]) -> None:
    """Raise if an entry of a random weight is used a second time; an operation that only moves entries is no use."""
    moved = {id(result.origin) for result in results if result.origin is not None}
    for tensor in random:
        if tensor.origin is not None and id(tensor.origin) not in moved and tensor.origin.use(tensor.expected):
            why = (
                f"the random weight {tensor.origin.name!r} is used a second time, and its two uses are not independent"
            )
            missing(func, tensor, why)


def _dense_of(value: Any) -> Any:
    return value.dense() if isinstance(value, SparseTensor) else value


def refuse_kernel(kind: Any, func: Any, args: Any, kwargs: Any) -> NoReturn:
    """Raise `MissingRule`: an operation that reaches the kernels has bypassed the rules, and there are no values."""
    missing(func, next(leaf for leaf in leaves_of((args, kwargs or {})) if isinstance(leaf, kind)))


def missing(operation: Any, random: Any, why: str = "") -> NoReturn:
    """Raise `MissingRule` with the operation, the module that called it, and the remedy."""
    name = getattr(operation, "__name__", str(operation))
    home = getattr(operation, "__module__", None) or getattr(getattr(operation, "__objclass__", None), "__name__", "")
    if name == "__get__":  # a property of the tensor
        name, home = f"property {getattr(operation.__self__, '__name__', operation.__self__)}", "torch.Tensor"
    spelling = f"{home}.{name}" if home else name
    kind = random.rules.name
    raise MissingRule(
        f"{spelling}, called in {_calling_module(random.setting.model)}, has no rule of {kind} for these arguments"
        + (f": {why}. " if why else ". ")
        + f"Write one: @RULES.rule(<the operation>, exact=..., assumes=...) with RULES of leanbayes.propagate.{kind}; "
        'or draw weights instead (propagate="sample", or predict_by="sample")'
    )


def _calling_module(model: nn.Module | None) -> str:
    """Return the name of the innermost module of ``model`` (or of the outermost module) whose forward is running."""
    running: list[nn.Module] = []
    frame: Any = sys._getframe(2)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, nn.Module):
            running.append(caller)
        frame = frame.f_back
    if not running:
        return "no module"
    names = {id(module): name for name, module in (model or running[-1]).named_modules()}
    inner = next((module for module in running if id(module) in names), running[0])
    return f"module {names.get(id(inner), '') or '(the model itself)'!r} ({type(inner).__name__})"


@functools.cache
def _out_of_place(operation: Any) -> tuple[Any, bool]:
    """Return the operation without its effect in place, and whether ``operation`` works in place."""
    name = getattr(operation, "__name__", "")
    if name == "__setitem__":
        return operation, True
    if name.startswith("__i") and name.endswith("__") and name not in ("__invert__", "__index__", "__int__"):
        return getattr(Tensor, "__" + name[3:], operation), True
    if name.endswith("_") and not name.endswith("__"):
        for home in (Tensor, torch, F):
            if getattr(home, name, None) is operation:
                return getattr(home, name[:-1], getattr(torch, name[:-1], operation)), True
    return operation, False


@functools.cache
def _has_inplace_argument() -> frozenset[Any]:
    functions = [value for value in vars(F).values() if inspect.isfunction(value)]
    return frozenset(f for f in functions if "inplace" in inspect.signature(f).parameters)


def _fits(function: Any, *args: Any, **kwargs: Any) -> bool:
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


_signature = functools.cache(inspect.signature)
