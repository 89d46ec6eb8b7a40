"""The catalogue of recipes: those in this folder, and those that other packages add through entry points."""

from leanbayes._catalogue import Catalogue
from leanbayes.lab.recipes.base import Recipe

__all__ = ["RECIPES"]


def _name_of(value: object) -> str | None:
    is_recipe = isinstance(value, type) and issubclass(value, Recipe) and "name" in vars(value)
    return str(value.name) if is_recipe else None  # type: ignore[attr-defined]


RECIPES: Catalogue[type[Recipe]] = Catalogue(
    "recipe", _name_of, package="leanbayes.lab.recipes", group="leanbayes.recipes"
)
"""Every recipe by name. A class joins by lying in this folder, or through the entry-point group "leanbayes.recipes"."""
