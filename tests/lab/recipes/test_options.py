"""Options: values of every kind from texts."""

from typing import Any, Literal

import pytest

from leanbayes.errors import InputError
from leanbayes.lab.recipes import parse_value


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
