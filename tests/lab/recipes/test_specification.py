"""Recipes as text: names, options, and what is refused."""

import dataclasses

import pytest

import leanbayes as lb
from leanbayes.lab.recipes import RECIPES, parse, settings


def test_names_and_options() -> None:
    names = "deterministic ensemble dropout vi radial vdp partial layers lean swag laplace temperature ssvi rigl"
    assert {*names.split(), "variational_dropout", "swa", "snapshot", "conformal", "tta"} == set(RECIPES)
    recipe = parse("partial:rate=0.02,propagate=local")
    assert (recipe.rate, recipe.propagate) == (0.02, "local")
    assert settings(parse("vi+temperature"))["of"]["name"] == "vi"
    for recipe_class in RECIPES.values():
        assert dataclasses.is_dataclass(recipe_class)
        with pytest.raises(dataclasses.FrozenInstanceError):
            recipe_class().name2 = 1


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("partials", "unknown recipe 'partials'"),
        ("partial:rat=1", "unknown option of partial 'rat'"),
        ("partial:rate", "not an option"),
        ("partial:rate=much", "rate must be a number, got 'much'"),
        ("vi:prior=flat", "unknown prior 'flat'"),
        ("vi:propagate=psychic", "unknown propagation"),
        ("layers:predict=psychic", "unknown propagation"),
        ("vdp:likelihood=perfect", "unknown likelihood"),
        ("vdp:per=layer", "unknown per"),
        ("vi:pretrain=1.5", "pretrain"),
        ("vi+vi", "on top"),
        ("ensemble:members=1", "at least 2 members"),
        ("ensemble:members=2.5", "members must be a whole number"),
        ("laplace:subset=all", "unknown subset"),
        ("ssvi:density=0", "density"),
        ("ssvi:density=2", "density"),
        ("ssvi:layout=dense", "unknown layout|layout"),
        ("ssvi:removal=size", "unknown removal criterion"),
        ("ssvi:addition=none", "unknown addition criterion|addition"),
        ("ssvi:rate=1", "rate"),
        ("ssvi:every=0", "every"),
        ("ssvi:stop=0", "stop"),
        ("ssvi:kl_start=0.1", "kl_start"),
        ("rigl:density=0", "density"),
        ("rigl:rate=2", "rate"),
        ("variational_dropout:prior=normal", "unknown prior"),
        ("variational_dropout:kl_start=0.1", "kl_start"),
    ],
)
def test_a_bad_specification_is_named(spec: str, message: str) -> None:
    with pytest.raises(lb.errors.InputError, match=message):
        parse(spec)
