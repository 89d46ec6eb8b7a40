"""Files of options: a YAML file that holds options of a command by name."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from leanbayes.errors import FileError, InputError, UnknownName

__all__ = ["read_config"]


def read_config(path: Path, known: Collection[str]) -> dict[str, Any]:
    """Read the options of a YAML file.

    Args:
        path: the file. Its keys are names of options, with hyphens or underscores. An item of a list may be a mapping
            from a recipe to its options: ``{partial: {rate: 0.02}}`` means ``partial:rate=0.02``.
        known: the names that may occur.

    Returns:
        The values by name, with underscores.
    """
    if not path.is_file():
        raise FileError(f"there is no file {path}")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, Mapping):
        raise InputError(f"{path} must hold names and values, one option a line, got a {type(content).__name__}")
    values = {str(key).replace("-", "_"): _value(value) for key, value in content.items()}
    for name in values:
        if name not in known:
            raise UnknownName.of(f"option in {path}", name, known)
    return values


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return [_specification(item) for item in value]
    return _specification(value)


def _specification(item: Any) -> Any:
    if not isinstance(item, Mapping):
        return item
    if len(item) != 1:
        raise InputError(f"a method with options is one name and its options, got {dict(item)}")
    ((name, options),) = item.items()
    if not isinstance(options, Mapping):
        raise InputError(f"the options of {name!r} must be names and values, got {options!r}")
    recipe, plus, on_top = str(name).partition("+")
    return f"{recipe}:{','.join(f'{key}={value}' for key, value in options.items())}{plus}{on_top}"
