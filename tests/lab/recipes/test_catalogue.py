"""Recipes are found by lying in a folder, and other packages add theirs; see also tests/test_plugin.py."""

from leanbayes.lab.recipes import RECIPES, Recipe, recipes_on_top


def test_every_member_is_a_recipe_under_its_own_name() -> None:
    assert all(issubclass(recipe, Recipe) and recipe.name == name for name, recipe in RECIPES.items())
    assert "variational" not in RECIPES


def test_what_goes_on_top_is_declared_by_its_class() -> None:
    assert "temperature" in recipes_on_top()
    assert "vi" not in recipes_on_top()


def test_every_option_explains_itself() -> None:
    for recipe in RECIPES.values():
        for item in recipe.__dataclass_fields__.values():
            text = item.metadata.get("help", "A recipe.")
            assert text[0].isupper(), f"{recipe.name}, {item.name}: {text}"
            assert text.endswith("."), f"{recipe.name}, {item.name}: {text}"
