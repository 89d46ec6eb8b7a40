"""Named, frozen configurations of how a predictor is built and trained. A new one is a new file in this folder."""

import importlib
import pkgutil
from dataclasses import fields, is_dataclass
from typing import Any, Literal, get_origin, get_type_hints

from leanbayes.errors import InputError, UnknownName
from leanbayes.lab.recipes.base import Budget, Recipe, Run, Trained, prepare

__all__ = ["RECIPES", "Budget", "Recipe", "Run", "Trained", "parse", "parse_value", "prepare", "settings"]


def _found() -> dict[str, type[Recipe]]:
    recipes: dict[str, type[Recipe]] = {}
    for module in pkgutil.iter_modules(__path__):
        for value in vars(importlib.import_module(f"{__name__}.{module.name}")).values():
            if isinstance(value, type) and issubclass(value, Recipe) and "name" in vars(value):
                recipes[value.name] = value
    return recipes


RECIPES = _found()


def parse(text: str) -> Recipe:
    """A recipe from its name, options and what is put on top.

    >>> parse("partial:rate=0.02,prior=centred")
    Partial(..., prior='centred', ..., rate=0.02, scope='global')
    >>> parse("ensemble+temperature").of.name
    'ensemble'
    """
    first, *tops = text.split("+")
    recipe = _one(first)
    for top in tops:
        if top != "temperature":
            raise UnknownName.of("recipe to put on top", top, ["temperature"])
        recipe = RECIPES["temperature"](of=recipe)  # type: ignore[call-arg]
    return recipe


def _one(text: str) -> Recipe:
    name, _, rest = text.partition(":")
    if name not in RECIPES:
        raise UnknownName.of("recipe", name, RECIPES)
    given = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise InputError(f"{part!r} in {text!r} is no option; write name:option=value,option=value")
        given[key.strip()] = value.strip()
    hints = get_type_hints(RECIPES[name])
    known = [each.name for each in fields(RECIPES[name]) if each.name != "of"]  # type: ignore[arg-type]
    for key in given:
        if key not in known:
            raise UnknownName.of(f"option of {name}", key, known)
    return RECIPES[name](**{key: parse_value(value, hints[key], key) for key, value in given.items()})


def parse_value(text: Any, kind: Any, name: str) -> Any:
    """A value of this type from what the command line or a file gives.

    >>> parse_value("0.5", float, "rate"), parse_value("none", float | None, "clip")
    (0.5, None)
    """
    options = getattr(kind, "__args__", None)
    if get_origin(kind) is Literal:
        if text not in (options or ()):
            raise UnknownName.of(name, text, options)
        return text
    if options and type(None) in options:
        if text is None or str(text).lower() == "none":
            return None
        kind = next(each for each in options if each is not type(None))
    try:
        if kind is bool:
            return {"true": True, "false": False}[str(text).lower()]
        if kind is int and float(text) == int(float(text)):
            return int(float(text))
        return kind(text)
    except (ValueError, KeyError, TypeError, OverflowError):
        raise InputError(f"{name} must be {'a ' + kind.__name__}, got {text!r}") from None


def settings(recipe: Any) -> dict[str, Any]:
    """A recipe's options for a record, those of the recipe under it with them."""
    found: dict[str, Any] = {"name": recipe.name} if isinstance(recipe, Recipe) else {}
    for each in fields(recipe):
        value = getattr(recipe, each.name)
        found[each.name] = settings(value) if is_dataclass(value) else value
    return found
