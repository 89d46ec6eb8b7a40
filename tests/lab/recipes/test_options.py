"""Options: values of every kind from texts."""

from dataclasses import fields
from typing import Any, Literal

import pytest

from leanbayes.errors import InputError
from leanbayes.lab.recipes import RECIPES, option_types, parse, parse_value
from leanbayes.lab.recipes.options import check_within


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("3", int, 3),
        ("1e3", int, 1000),
        (2.0, int, 2),
        ("0.5", float, 0.5),
        ("none", float | None, None),
        (None, int | None, None),
        ("7", int | None, 7),
        ("TRUE", bool, True),
        (False, bool, False),
        ("a", Literal["a", "b"], "a"),
        ("text", str, "text"),
    ],
)
def test_values(text: Any, kind: Any, value: Any) -> None:
    assert parse_value(text, kind, "x") == value
    assert type(parse_value(text, kind, "x")) is type(value)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("1.5", int, "x must be a whole number, got '1.5'"),
        ("inf", int, "x must be a whole number, got 'inf'"),
        ("many", float | None, "x must be a number, got 'many'"),
        ("maybe", bool, "x must be true or false, got 'maybe'"),
        (None, float, "x must be a number, got None"),
        ("c", Literal["a", "b"], "unknown x 'c'"),
    ],
)
def test_bad_values(text: Any, kind: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_value(text, kind, "x")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("text", ["1e300", "9223372036854775808", "-1e19", "nan", "inf", "1.5", "²", ""])
def test_a_whole_number_has_64_bits(text: str) -> None:
    """A count of 10³⁰⁰ kept the program busy for ever."""
    with pytest.raises(InputError, match="whole number"):
        parse_value(text, int, "x")
    assert parse_value("9223372036854775807", int, "x") == 2**63 - 1


@pytest.mark.parametrize(
    ("value", "within", "inside"),
    [
        (0, "(0, 1]", False),
        (1, "(0, 1]", True),
        (0.0, "[0, 1)", True),
        (1.0, "[0, 1)", False),
        (float("nan"), "(-inf, inf)", False),
        (float("inf"), "[0, inf)", False),
        (1e30, "[0, inf)", True),
        (None, "(0, 1)", True),
        ("text", "(0, 1)", True),
        (-7, None, True),
    ],
)
def test_intervals(value: Any, within: str | None, inside: bool) -> None:
    if inside:
        check_within(value, within, "x")
        return
    with pytest.raises(InputError, match="x must lie in"):
        check_within(value, within, "x")


@pytest.mark.parametrize("recipe", list(RECIPES.values()), ids=lambda recipe: str(recipe.name))
def test_every_number_of_a_recipe_has_an_interval_which_parsing_checks(recipe: Any) -> None:
    """``partial:rate=-0.1`` was found after the plain network had been trained, and only this method failed."""
    for name, kind in option_types(recipe).items():
        kinds = {kind, *getattr(kind, "__args__", ())}
        if not {int, float} & kinds:
            continue
        (declared,) = [item for item in fields(recipe) if item.name == name]
        assert declared.metadata["within"], f"{recipe.name}:{name} needs option(..., within=...)"
        check_within(declared.default, declared.metadata["within"], name)
        if float in kinds:
            for value in ("nan", "inf"):
                with pytest.raises(InputError, match=f"{recipe.name}:{name} must be a finite number"):
                    parse(f"{recipe.name}:{name}={value}")
