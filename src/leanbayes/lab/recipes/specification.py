"""Specifications: a recipe as text, such as ``partial:rate=0.02+temperature``, and as a record."""

import math
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from leanbayes.errors import InputError, UnknownName
from leanbayes.lab.recipes.base import OnTop, Recipe
from leanbayes.lab.recipes.catalogue import RECIPES
from leanbayes.lab.recipes.options import check_within, parse_value

__all__ = ["option_types", "parse", "recipes_on_top", "settings"]


def parse(text: str) -> Recipe:
    """Make a recipe from its specification.

    Args:
        text: ``name`` or ``name:option=value,option=value``. What is put on top follows after a plus, and may have
            options too.

    Returns:
        The recipe.

    >>> parse("partial:rate=0.02,prior=centred")
    Partial(..., prior='centred', ..., rate=0.02, scope='global', score='absolute', probes=None)
    >>> parse("ensemble+temperature").of.name
    'ensemble'
    """
    first, *additions = text.split("+")
    name, options = _name_and_options(first)
    recipe = _make(RECIPES.named(name), options)
    for addition in additions:
        name, options = _name_and_options(addition)
        on_top = recipes_on_top()
        if name not in on_top:
            raise UnknownName.of("recipe to put on top", name, on_top)
        recipe = _make(on_top[name], options, of=recipe)
    return recipe


def recipes_on_top() -> dict[str, type[OnTop]]:
    """Return the recipes that can be put on top of another one, by name."""
    return {name: recipe for name, recipe in RECIPES.items() if issubclass(recipe, OnTop)}


def option_types(recipe: type[Recipe]) -> dict[str, Any]:
    """Return the type of each option of a recipe; the recipe that another one is put on top of is not an option.

    >>> option_types(RECIPES["dropout"])
    {'rate': <class 'float'>}
    """
    hints = get_type_hints(recipe)
    return {item.name: hints[item.name] for item in fields(recipe) if hints[item.name] is not Recipe}  # type: ignore[arg-type]


def settings(recipe: Any) -> dict[str, Any]:
    """Return the name and the options of a recipe for a record, with those of the recipe underneath it.

    >>> settings(parse("dropout+temperature"))
    {'name': 'temperature', 'of': {'name': 'dropout', 'rate': 0.2}}
    """
    record: dict[str, Any] = {"name": recipe.name} if isinstance(recipe, Recipe) else {}
    for item in fields(recipe):
        value = getattr(recipe, item.name)
        record[item.name] = settings(value) if is_dataclass(value) else value
    return record


def _name_and_options(text: str) -> tuple[str, dict[str, str]]:
    name, _, listed = text.partition(":")
    options = {}
    for part in filter(None, listed.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise InputError(f"{part!r} in {text!r} is not an option; write name:option=value,option=value")
        options[key.strip()] = value.strip()
    return name, options


def _make(recipe: type[Recipe], options: dict[str, str], **fixed: Any) -> Recipe:
    types, values = option_types(recipe), {}
    for key, text in options.items():
        if key not in types:
            raise UnknownName.of(f"option of {recipe.name}", key, types)
        values[key] = parse_value(text, types[key], key)
        if isinstance(values[key], float) and not math.isfinite(values[key]):
            raise InputError(f"{recipe.name}:{key} must be a finite number, got {text}")
    made = recipe(**fixed, **values)
    for item in fields(made):  # type: ignore[arg-type]
        check_within(getattr(made, item.name), item.metadata.get("within"), f"{recipe.name}:{item.name}")
    return made
