"""The list of recipes in the help pages."""

import pytest

from leanbayes.lab.cli.recipe_help import recipe_help
from leanbayes.lab.recipes import RECIPES


def test_every_recipe_is_listed_and_shared_options_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = recipe_help()
    assert max(map(len, text.splitlines())) <= 80
    for name in RECIPES:
        assert f"\n  {name}: " in text
    assert text.count("scale_lr=") == 1
    assert text.count("\n      density=0.05: ") == 2
