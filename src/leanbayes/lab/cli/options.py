"""Options of a command from dataclasses: given on the command line, else in a YAML file, else the default."""

import argparse
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_type_hints

import yaml

from leanbayes.errors import FileError, InputError, UnknownName
from leanbayes.lab.recipes import parse_value

__all__ = ["OneLineParser", "add_options", "chosen", "read_config"]

T = TypeVar("T")


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, and exits with 2."""

    def error(self, message: str) -> NoReturn:
        """As every other bad input."""
        raise InputError(f"{message}; {self.prog} --help lists the options")


def add_options(parser: argparse.ArgumentParser, *groups: type[Any]) -> None:
    """A ``--name`` for each field of each dataclass; what is not given stays out of the namespace."""
    for group in groups:
        section = parser.add_argument_group((group.__doc__ or "").strip().splitlines()[0].rstrip("."))
        hints = get_type_hints(group)
        for each in fields(group):
            text = each.metadata.get("help", "")
            settings: dict[str, Any] = {"dest": each.name, "default": argparse.SUPPRESS}
            if hints[each.name] is bool:
                settings["action"] = argparse.BooleanOptionalAction
            elif _is_list(hints[each.name]):
                settings |= {"nargs": "+", "metavar": each.name.upper()}
            else:
                settings["metavar"] = each.name.upper()
            section.add_argument(f"--{each.name.replace('_', '-')}", help=_with_default(text, each), **settings)


def read_config(path: str | None, *groups: type[Any]) -> dict[str, Any]:
    """The options of a YAML file, by the names of the fields."""
    if path is None:
        return {}
    file = Path(path)
    if not file.is_file():
        raise FileError(f"there is no file {file}")
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{file} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(found, Mapping):
        raise InputError(f"{file} must hold names and values, one option a line, got a {type(found).__name__}")
    known = {each.name for group in groups for each in fields(group)}
    given = {str(key).replace("-", "_"): value for key, value in found.items()}
    for key in given:
        if key not in known:
            raise UnknownName.of(f"option in {file}", key, known)
    return given


def chosen(group: type[T], given: argparse.Namespace, config: Mapping[str, Any]) -> T:
    """One dataclass filled in."""
    values = dict(config) | vars(given)
    hints = get_type_hints(group)
    found = {}
    for each in fields(group):  # type: ignore[arg-type]
        if each.name in values:
            found[each.name] = _value(values[each.name], hints[each.name], each.name)
        elif each.default is MISSING and each.default_factory is MISSING:
            raise InputError(f"--{each.name.replace('_', '-')} is missing")
    return group(**found)


def _value(value: Any, hint: Any, name: str) -> Any:
    if not _is_list(hint):
        return parse_value(value, hint, f"--{name.replace('_', '-')}")
    kind = hint.__args__[0]
    items = value if isinstance(value, list | tuple) else [value]
    return tuple(parse_value(_spec(item), kind, f"--{name.replace('_', '-')}") for item in items)


def _spec(item: Any) -> Any:
    """A method in a file may be ``{partial: {rate: 0.02}}``: on the command line that is ``partial:rate=0.02``."""
    if not isinstance(item, Mapping):
        return item
    if len(item) != 1:
        raise InputError(f"a method with options is one name and its options, got {dict(item)}")
    ((name, options),) = item.items()
    if not isinstance(options, Mapping):
        raise InputError(f"the options of {name!r} must be names and values, got {options!r}")
    base, plus, top = str(name).partition("+")
    return f"{base}:{','.join(f'{key}={value}' for key, value in options.items())}{plus}{top}"


def _is_list(hint: Any) -> bool:
    return getattr(hint, "__origin__", None) is tuple


def _with_default(text: str, each: "Field[Any]") -> str:
    if each.default is MISSING or each.default is None:
        return text.replace("%", "%%")
    shown = " ".join(map(str, each.default)) if isinstance(each.default, tuple) else each.default
    return f"{text} (default: {shown})".replace("%", "%%")
