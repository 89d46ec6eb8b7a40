"""Recipes: named, frozen configurations of how a predictor is built and trained. A new one is a new file here."""

from leanbayes.lab.recipes.base import OnTop, Recipe, Trained, prepare
from leanbayes.lab.recipes.budget import Budget
from leanbayes.lab.recipes.catalogue import RECIPES
from leanbayes.lab.recipes.options import option, parse_value
from leanbayes.lab.recipes.run import Run
from leanbayes.lab.recipes.specification import option_types, parse, recipes_on_top, settings

__all__ = [
    "RECIPES",
    "Budget",
    "OnTop",
    "Recipe",
    "Run",
    "Trained",
    "option",
    "option_types",
    "parse",
    "parse_value",
    "prepare",
    "recipes_on_top",
    "settings",
]
