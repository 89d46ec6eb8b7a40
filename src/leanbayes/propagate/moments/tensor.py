"""A tensor that is known by its mean and variance, and the dispatch of operations on it to their rules."""

import functools
import inspect
import sys
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from leanbayes.errors import MissingRule, UnknownName
from leanbayes.posterior import RandomWeight
from leanbayes.propagate.registry import Registry
from leanbayes.propagate.stand_in import QUESTIONS

__all__ = [
    "ORDERS",
    "POSITIONS",
    "RULES",
    "MomentTensor",
    "Setting",
    "expected_of",
    "first_random",
    "missing",
    "only_first",
    "parts_of",
]

RULES = Registry("moments")

ORDERS = ("gaussian", "taylor")
POSITIONS = ("split", "shared", "independent")

# What only asks for shape, type or place, or makes a new tensor by them, is answered by the mean.
_LIKE = "zeros_like ones_like empty_like full_like rand_like randn_like"
_NEW = "new_zeros new_ones new_empty new_full new_tensor is_complex is_floating_point"
_ANSWERED_BY_THE_MEAN = {
    *(QUESTIONS - {Tensor.__hash__, Tensor.data_ptr, Tensor.requires_grad.__get__}),  # type: ignore[attr-defined]
    *(getattr(torch, name) for name in _LIKE.split()),
    *(getattr(Tensor, name) for name in _NEW.split()),
}


@dataclass(frozen=True)
class Setting:
    """How moments pass through one call of a model; every tensor of the call carries it.

    Args:
        order: "gaussian": the moments of an activation of a Gaussian; "taylor": first order (002, eq. 4, 5).
        positions: how positions that share a random filter are taken; see `leanbayes.propagate.moments.shared`.
        model: whose modules name the place of an error.
        examples: the axis that holds the examples where a linear layer is met; attention in torch moves it.
    """

    order: str = "gaussian"
    positions: str = "split"
    model: nn.Module | None = None
    examples: int = 0

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise UnknownName.of("order", self.order, ORDERS)
        if self.positions not in POSITIONS:
            raise UnknownName.of("treatment of positions", self.positions, POSITIONS)


class _Memory:
    """What a tensor and its views have in common: how often it was written to."""

    version = 0


class MomentTensor(Tensor):
    """Random numbers by their mean ``expected`` and ``variance``, entry by entry. It has no storage of its own.

    ``shared`` is the fraction of the variance that entries have in common along the axes where it has length 1;
    None where nothing is. No values can be read by accident: what has no rule raises `MissingRule`.
    """

    expected: Tensor
    shared: Tensor | None
    setting: Setting
    weight: RandomWeight | None
    memory: _Memory
    version: int

    @staticmethod
    def of(expected: Tensor, variance: Tensor, shared: Tensor | None, setting: Setting) -> "MomentTensor":
        """Join mean, variance and the fraction that is shared."""
        made: MomentTensor = Tensor._make_wrapper_subclass(
            MomentTensor, expected.shape, dtype=expected.dtype, device=expected.device
        )
        made.setting, made.memory, made.weight = setting, _Memory(), None
        made._fill(expected, variance, shared)
        return made

    @staticmethod
    def of_weight(weight: RandomWeight, setting: Setting) -> "MomentTensor":
        """A random weight; its variance is made when a rule asks for it, so that not all exist at once."""
        made: MomentTensor = Tensor._make_wrapper_subclass(
            MomentTensor, weight.mean.shape, dtype=weight.mean.dtype, device=weight.mean.device
        )
        made.setting, made.memory, made.weight = setting, _Memory(), weight
        made._fill(weight.mean, None, None)
        return made

    def like(self, expected: Tensor, variance: Tensor, shared: Tensor | None = None) -> "MomentTensor":
        """Other moments under the same setting."""
        return MomentTensor.of(expected, variance, shared, self.setting)

    def view_of(self, base: "MomentTensor") -> "MomentTensor":
        """Itself, known as a view of ``base``: writing to one makes the other stale."""
        self.memory, self.version = base.memory, base.version
        return self

    @property
    def variance(self) -> Tensor:
        """The variance of each entry."""
        if self._variance is None:
            assert self.weight is not None
            return self.weight.variance()
        return self._variance

    def _fill(self, expected: Tensor, variance: Tensor | None, shared: Tensor | None) -> None:
        self.expected, self._variance, self.shared = expected, variance, shared
        self.version = self.memory.version

    def _overwrite(self, other: "MomentTensor") -> None:
        self.memory.version += 1
        self._fill(other.expected, other.variance, other.shared)
        self.weight = None

    @property
    def requires_grad(self) -> bool:  # type: ignore[override]
        """Whether the mean or the variance does."""
        if self._variance is None:
            assert self.weight is not None
            raw = self.weight.rho if self.weight.rho is not None else self.weight.spread
            return self.expected.requires_grad or raw.requires_grad
        return self.expected.requires_grad or self._variance.requires_grad

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"MomentTensor(expected={self.expected}, variance={self.variance})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Apply the rule for ``func``; in-place spellings are the plain ones with the result written back."""
        kwargs = kwargs or {}
        if func in _ANSWERED_BY_THE_MEAN:
            args, kwargs = tree_map(expected_of, (args, kwargs))
            return func(*args, **kwargs)
        random = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, MomentTensor)]
        if any(tensor.version != tensor.memory.version for tensor in random):
            missing(
                func, random[0], "a view of one of its arguments was written to in place, which views do not follow"
            )
        operation, in_place = _out_of_place(func)
        if operation in _has_inplace_argument():
            bound = _signature(operation).bind(*args, **kwargs)
            in_place = bound.arguments.pop("inplace", False)
            args, kwargs = bound.args, bound.kwargs
        rule = RULES.find(operation)
        if rule is None or kwargs.get("out") is not None:
            missing(func, random[0])
        if in_place and not isinstance(args[0], MomentTensor):
            missing(func, random[0], "a plain tensor cannot take random values in place; write it as an assignment")
        try:
            result = rule.function(operation, *args, **kwargs)
        except TypeError:
            if _fits(rule.function, operation, *args, **kwargs):
                raise
            missing(func, random[0], "it is called in a way that its rule does not know")
        if in_place:
            args[0]._overwrite(result)
            return args[0]
        return result

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """What reaches the kernels has gone round the rules: there are no values to compute with."""
        random = next(leaf for leaf in tree_leaves((args, kwargs or {})) if isinstance(leaf, MomentTensor))
        missing(func, random)


def expected_of(value: Any) -> Any:
    """The mean of a random tensor; anything else as it is."""
    return value.expected if isinstance(value, MomentTensor) else value


def parts_of(value: Any) -> tuple[Any, Tensor | None, Tensor | None]:
    """Mean, variance and shared fraction; the last two are None for anything plain."""
    if isinstance(value, MomentTensor):
        return value.expected, value.variance, value.shared
    return value, None, None


def first_random(*values: Any) -> MomentTensor:
    """The first argument that is random: its setting is the setting of the call."""
    return next(value for value in values if isinstance(value, MomentTensor))


def only_first(operation: Any, values: Any) -> MomentTensor:
    """The first of a rule's arguments, if no other is random."""
    random = [leaf for leaf in tree_leaves(values) if isinstance(leaf, MomentTensor)]
    if len(random) != 1 or random[0] is not values[0]:
        missing(operation, random[0], "only its first argument may be random")
    found: MomentTensor = random[0]
    return found


def missing(operation: Any, random: MomentTensor, why: str = "") -> NoReturn:
    """Raise `MissingRule` with the operation, the module that called it, and what to do."""
    name = getattr(operation, "__name__", str(operation))
    home = getattr(operation, "__module__", None) or getattr(getattr(operation, "__objclass__", None), "__name__", "")
    if name == "__get__":  # a property of the tensor
        name, home = f"property {getattr(operation.__self__, '__name__', operation.__self__)}", "torch.Tensor"
    spelling = f"{home}.{name}" if home else name
    raise MissingRule(
        f"{spelling}, called in {_calling_module(random.setting.model)}, has no moment rule for these arguments"
        + (f": {why}. " if why else ". ")
        + "Write one: @RULES.rule(<the operation>, exact=..., assumes=...) with RULES of leanbayes.propagate.moments; "
        'or draw samples instead (propagate="sample")'
    )


def _calling_module(model: nn.Module | None) -> str:
    """The innermost module of ``model`` (or of the outermost running) whose forward is running, by qualified name."""
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
    """The operation that ``operation`` does in place, and whether it does."""
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
