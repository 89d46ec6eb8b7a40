"""The space of a search: a range or choices for each option of a recipe, and the specification of each point in it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any, get_type_hints

from leanbayes.errors import InputError, UnknownName
from leanbayes.lab.recipes import RECIPES, parse, parse_value

__all__ = ["USUAL", "Choice", "Range", "Space"]

KL_WEIGHT = "kl_weight"
_BOTH = ("kl_start", "kl_end")  # a recipe that anneals has these two, and ``kl_weight`` sets both to one weight
USUAL = {KL_WEIGHT: "0.0001..10:log", "init_scale": "0.001..0.1:log", "rate": "0.001..0.1:log"}
"""The options that are searched by default, if the recipe has them."""


@dataclass(frozen=True)
class Range:
    """The numbers from ``low`` to ``high``, on a linear or a logarithmic scale."""

    low: float
    high: float
    log: bool = False

    def distribution(self) -> Any:
        """Return the distribution of Optuna for these values."""
        kinds = import_module("optuna.distributions")
        kind = kinds.IntDistribution if isinstance(self.low, int) else kinds.FloatDistribution
        return kind(self.low, self.high, log=self.log)

    def value(self, drawn: float) -> float:
        """Round a number that Optuna drew to four digits, which are enough to train with and short enough to paste."""
        return drawn if isinstance(drawn, int) else min(max(float(f"{drawn:.4g}"), self.low), self.high)

    def ends(self) -> tuple[float, float]:
        """Return the values that must be possible."""
        return self.low, self.high

    def __str__(self) -> str:
        return f"{_text(self.low)}..{_text(self.high)}{':log' if self.log else ''}"


@dataclass(frozen=True)
class Choice:
    """Several values, of which one is chosen."""

    values: tuple[Any, ...]

    def distribution(self) -> Any:
        """Return the distribution of Optuna for these values."""
        return import_module("optuna.distributions").CategoricalDistribution(self.values)

    def value(self, drawn: Any) -> Any:
        """Return the value that Optuna drew."""
        return drawn

    def ends(self) -> tuple[Any, ...]:
        """Return the values that must be possible."""
        return self.values

    def __str__(self) -> str:
        return ",".join(map(_text, self.values))


class Space:
    """The options of a recipe that are searched, each as ``low..high``, ``low..high:log`` or ``value,value``.

    The option ``kl_weight`` means one weight of the KL in all of training. In a recipe that anneals the weight, it sets
    ``kl_start`` and ``kl_end`` to the same value.

    >>> space = Space("vi:prior=normal+temperature", {"kl_weight": "1e-3..10:log"})
    >>> space.method({"kl_weight": 0.5})
    'vi:prior=normal,kl_start=0.5,kl_end=0.5+temperature'

    Args:
        method: the specification of a recipe; an option that it gives is not searched.
        search: the range or the choices of each option; None or nothing searches those of `USUAL`.
    """

    def __init__(self, method: str, search: Mapping[str, str] | None = None) -> None:
        parse(method)
        first, self.plus, self.tops = method.partition("+")
        self.name, _, options = first.partition(":")
        pairs = (part.partition("=") for part in filter(None, options.split(",")))
        self.fixed = {key.strip(): value.strip() for key, _, value in pairs}
        hints = get_type_hints(RECIPES[self.name])
        self.kinds = {each.name: hints[each.name] for each in fields(RECIPES[self.name]) if each.name != "of"}  # type: ignore[arg-type]
        if KL_WEIGHT not in self.kinds and set(_BOTH) <= self.kinds.keys():
            self.kinds[KL_WEIGHT] = float
        self.axes = {name: self._axis(name, text) for name, text in (search or self._usual()).items()}
        start = {name: axis.ends()[0] for name, axis in self.axes.items()}
        for name, axis in self.axes.items():
            for value in axis.ends():
                parse(self.method(start | {name: value}))

    def method(self, values: Mapping[str, Any]) -> str:
        """Return the specification of one point, for `parse` and the command line."""
        options = dict(self.fixed)
        for name, value in values.items():
            options |= dict.fromkeys(self._sets(name), _text(value))
        joined = ",".join(f"{name}={value}" for name, value in options.items())
        return f"{self.name}{':' if joined else ''}{joined}{self.plus}{self.tops}"

    def distributions(self) -> dict[str, Any]:
        """Return a distribution of Optuna for each option."""
        return {name: axis.distribution() for name, axis in self.axes.items()}

    def values(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values that a trial is trained with, from those that Optuna drew."""
        return {name: axis.value(drawn[name]) for name, axis in self.axes.items()}

    def _sets(self, name: str) -> tuple[str, ...]:
        has = {each.name for each in fields(RECIPES[self.name])}  # type: ignore[arg-type]
        return _BOTH if name == KL_WEIGHT and name not in has else (name,)

    def _usual(self) -> dict[str, str]:
        usual = {
            name: text
            for name, text in USUAL.items()
            if name in self.kinds and self.fixed.keys().isdisjoint(self._sets(name))
        }
        if KL_WEIGHT not in self.kinds or not usual:
            raise InputError(
                f"{self.name} has nothing that is searched by default; say what to search, "
                f"of these options: {sorted(self.kinds) or 'none'}"
            )
        return usual

    def _axis(self, name: str, text: str) -> Range | Choice:
        if name not in self.kinds:
            raise UnknownName.of(f"option of {self.name} to search", name, self.kinds)
        for option in self._sets(name):
            if option in self.fixed:
                raise InputError(
                    f"{option} is fixed by {self.name}:{option}={self.fixed[option]} and cannot be searched too; "
                    "drop one of the two"
                )
        return _range(name, text, self.kinds[name]) if ".." in text else _choice(name, text, self.kinds[name])


def _range(name: str, text: str, kind: Any) -> Range:
    ends, _, scale = text.partition(":")
    if scale not in ("", "log") or text.endswith(":"):
        raise InputError(f"the range of {name} may end in :log and in nothing else, got {text!r}")
    if not {int, float} & {kind, *getattr(kind, "__args__", ())}:
        raise InputError(f"{name} is not a number and has no range, got {text!r}; list its values: {name}=a,b")
    low, _, high = (part.strip() for part in ends.partition(".."))
    span = Range(parse_value(low, kind, name), parse_value(high, kind, name), scale == "log")
    if not all(isinstance(end, int | float) and math.isfinite(end) for end in span.ends()):
        raise InputError(f"the range of {name} needs two numbers, got {text!r}")
    if not span.low < span.high:
        raise InputError(f"the range of {name} is empty or has only one value: {text!r}; write low..high")
    if span.log and span.low <= 0:
        raise InputError(f"a log scale needs numbers above 0, got {text!r} for {name}")
    return span


def _choice(name: str, text: str, kind: Any) -> Choice:
    values = tuple(parse_value(part.strip(), kind, name) for part in text.split(",") if part.strip())
    if any(isinstance(value, float) and not math.isfinite(value) for value in values):
        raise InputError(f"{name} needs finite values, got {text!r}")
    if len(values) < 2 or len(set(values)) < len(values):
        raise InputError(f"{name} needs low..high or at least two different values, got {text!r}")
    return Choice(values)


def _text(value: Any) -> str:
    """Write a value as `parse` reads it, without a plus sign in exponents: a plus would begin the next recipe."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value).replace("e+", "e")
