"""Options: how a configuration declares one, and how a text from the shell or a file becomes its value."""

from dataclasses import field
from typing import Any, Literal, get_args, get_origin

from leanbayes.errors import InputError, UnknownName

__all__ = ["check_within", "option", "parse_value"]

_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def option(default: Any, help: str, *, within: str | None = None) -> Any:
    """Declare a field of a frozen configuration together with its help text.

    Args:
        default: the value of the field where the user gives none.
        help: a sentence that says what the option does; the command line shows it.
        within: the interval in which a number must lie, such as ``"(0, 1]"``; a bracket includes the end.

    Returns:
        A dataclass field.
    """
    return field(default=default, metadata={"help": help, "within": within})


def check_within(value: Any, within: str | None, name: str) -> None:
    """Refuse a number that lies outside an interval, and NaN; None and texts lie in every interval.

    >>> check_within(-0.1, "(0, 1]", "rate")
    Traceback (most recent call last):
    ...
    leanbayes.errors.InputError: rate must lie in (0, 1], got -0.1
    """
    if within is None or not isinstance(value, int | float):
        return
    low, high = (float(end) for end in within[1:-1].split(","))
    above = value > low or (within[0] == "[" and value == low)
    below = value < high or (within[-1] == "]" and value == high)
    if not (above and below):
        raise InputError(f"{name} must lie in {within}, got {value}")


def _whole(value: Any) -> int:
    """Return a whole number of 64 bits, which may be written as ``1e3``. Larger ones are counts that never end."""
    number = int(value) if not isinstance(value, float) and str(value).lstrip("+-").isdigit() else float(value)
    if number != int(number) or abs(number) >= 2**63:
        raise ValueError(value)
    return int(number)


def parse_value(value: Any, kind: Any, name: str) -> Any:
    """Turn a text from the shell, or a value from a YAML file, into a value of the wanted type.

    Args:
        value: the text or value.
        kind: int, float, bool, str, a ``Literal``, or one of them with ``| None``; "none" stands for None.
        name: how an error message names the option, such as "rate" or "--epochs".

    Returns:
        The value of the wanted type.

    >>> parse_value("0.5", float, "rate"), parse_value("none", float | None, "clip"), parse_value("1e3", int, "epochs")
    (0.5, None, 1000)
    """
    alternatives = get_args(kind)
    if get_origin(kind) is Literal:
        if value not in alternatives:
            raise UnknownName.of(name, value, alternatives)
        return value
    if type(None) in alternatives:
        if value is None or str(value).lower() == "none":
            return None
        kind = next(alternative for alternative in alternatives if alternative is not type(None))
        return parse_value(value, kind, name)
    try:
        if kind is bool:
            return {"true": True, "false": False}[str(value).lower()]
        if kind is int:
            return _whole(value)
        return kind(value)
    except (ValueError, KeyError, TypeError, OverflowError):
        raise InputError(f"{name} must be {_KINDS.get(kind, kind.__name__)}, got {value!r}") from None
