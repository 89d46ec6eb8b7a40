"""The part of a help page that lists the recipes and their options."""

import shutil
import textwrap
from dataclasses import Field, fields
from typing import Any

from leanbayes.lab.recipes import RECIPES, OnTop, Recipe

__all__ = ["SPECIFICATION", "recipe_help"]

SPECIFICATION = "name, name:option=value,option=value, or either of them with +temperature"


def recipe_help() -> str:
    """Return the list of recipes with their options, wrapped to the width of the terminal.

    Options that several recipes inherit from the same class are listed once, after those recipes.
    """
    width = min(shutil.get_terminal_size().columns, 100)
    on_top = [name for name, recipe in RECIPES.items() if issubclass(recipe, OnTop)]
    opening = (
        "Write a recipe as name or as name:option=value,option=value. To put one of the recipes "
        f"{', '.join(on_top)} on top of another, write it after a plus: vi+{on_top[0]}. The recipes are:"
    )
    lines = textwrap.wrap(opening, width)
    shared: dict[type[Any], list[str]] = {}
    for name, recipe in RECIPES.items():
        lines += ["", *_paragraph(f"{name}: {(recipe.__doc__ or '').strip().splitlines()[0]}", 2, width)]
        parent = _parent(recipe)
        inherited = {item.name: _description(item) for item in _options(parent)}
        if inherited:
            shared.setdefault(parent, []).append(name)
        for item in _options(recipe):
            if inherited.get(item.name) != _description(item):
                lines += _paragraph(_description(item), 6, width)
    for parent, names in shared.items():
        lines += ["", *_paragraph(f"{', '.join(names)} also have these options, unless listed above:", 2, width)]
        for item in _options(parent):
            lines += _paragraph(_description(item), 6, width)
    return "\n".join(lines)


def _parent(recipe: type[Recipe]) -> type[Any]:
    return next(base for base in recipe.__mro__[1:] if "name" not in vars(base))


def _options(recipe: type[Any]) -> list["Field[Any]"]:
    if not hasattr(recipe, "__dataclass_fields__"):
        return []
    return [item for item in fields(recipe) if "help" in item.metadata]


def _description(item: "Field[Any]") -> str:
    return f"{item.name}={str(item.default).lower() if item.default is None else item.default}: {item.metadata['help']}"


def _paragraph(text: str, indent: int, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=" " * indent, subsequent_indent=" " * (indent + 4))
