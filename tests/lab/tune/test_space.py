"""Ranges and choices become specifications that parse to what was meant."""

import pytest

import leanbayes as lb
from leanbayes.lab.recipes import parse
from leanbayes.lab.tune.space import Choice, Range, Space


def test_one_weight_of_the_kl_is_start_and_end() -> None:
    space = Space(
        "partial:prior=normal,rate=0.02+temperature", {"kl_weight": "1e-3..10:log", "init_scale": "1e-3..0.1"}
    )
    assert space.axes == {"kl_weight": Range(1e-3, 10.0, log=True), "init_scale": Range(1e-3, 0.1)}
    recipe = parse(space.method(space.values({"kl_weight": 0.123456, "init_scale": 0.0123456}))).of
    assert (recipe.kl_start, recipe.kl_end, recipe.init_scale) == (0.1235, 0.1235, 0.01235)
    assert (recipe.name, recipe.prior, recipe.rate) == ("partial", "normal", 0.02)


def test_every_kind_of_option() -> None:
    search = {"draws": "1..4", "prior": "fitted, centred", "kl_end": "0.1,1e20", "scope": "layer,global"}
    space = Space("partial", search)
    assert space.axes["draws"] == Range(1, 4)
    assert isinstance(space.axes["draws"].low, int)
    assert space.axes["prior"] == Choice(("fitted", "centred"))
    assert {name: str(axis) for name, axis in space.axes.items()} == {
        "draws": "1..4", "prior": "fitted,centred", "kl_end": "0.1,1e20", "scope": "layer,global",
    }  # fmt: skip
    recipe = parse(space.method({"draws": 3, "prior": "centred", "kl_end": 1e20, "scope": "layer"}))
    assert (recipe.draws, recipe.prior, recipe.kl_end, recipe.scope) == (3, "centred", 1e20, "layer")


def test_rounded_values_stay_inside() -> None:
    axis = Range(0.123456, 0.123461)
    assert axis.value(0.1234561) == 0.1235 - (0.1235 - axis.high)
    assert Range(0.12341, 0.5).value(0.12341) == 0.12341
    assert Range(1e-9, 1.0, log=True).value(1.23456e-7) == 1.235e-7
    assert Range(10_000, 99_999).value(12_345) == 12_345


def test_what_is_usual() -> None:
    assert list(Space("vi").axes) == ["kl_weight", "init_scale"]
    assert list(Space("partial+temperature").axes) == ["kl_weight", "init_scale", "rate"]
    assert list(Space("partial:rate=0.05").axes) == ["kl_weight", "init_scale"]
    assert list(Space("vi:kl_end=1").axes) == ["init_scale"]
    for method in ("deterministic", "dropout", "laplace", "vi:kl_end=1,init_scale=0.1"):
        with pytest.raises(lb.errors.InputError, match="say what to search"):
            Space(method)


@pytest.mark.parametrize(
    ("method", "name", "text", "message"),
    [
        ("magic", "x", "1..2", "unknown recipe 'magic'"),
        ("vi", "rate", "0.1..0.2", "unknown option of vi to search 'rate'"),
        ("dropout", "kl_weight", "0.1..0.2", "unknown option of dropout to search 'kl_weight'"),
        ("temperature", "of", "a,b", "unknown option"),
        ("vi:kl_start=0.1", "kl_weight", "0.1..0.2", "kl_start is fixed"),
        ("vi: init_scale=0.1", "init_scale", "0.1..0.2", "init_scale is fixed"),
        ("vi", "init_scale", "low..high", "init_scale must be a number, got 'low'"),
        ("vi", "init_scale", "0.1..", "init_scale must be a number, got ''"),
        ("vi", "init_scale", "nan..1", "two numbers"),
        ("vi", "init_scale", "1..inf", "two numbers"),
        ("vi", "init_scale", "2..1", "is empty or has only one value"),
        ("vi", "init_scale", "1..1", "is empty or has only one value"),
        ("vi", "init_scale", "0..1:log", "above 0"),
        ("vi", "init_scale", "0.1..1:sqrt", ":log"),
        ("vi", "init_scale", "0.1..1:", ":log"),
        ("vi", "draws", "1..2.5", "draws must be a whole number"),
        ("vi", "prior", "a..b", "no range"),
        ("vi", "prior", "fitted,flat", "unknown prior 'flat'"),
        ("vi", "pretrain", "0.5..1", "pretrain must be in"),
        ("partial", "scope", "global,local", "unknown scope 'local'"),
        ("vi", "init_scale", "", "at least two"),
        ("vi", "init_scale", "0.1", "at least two"),
        ("vi", "init_scale", "0.1,0.10", "different"),
        ("vi", "init_scale", "0.1,nan", "finite"),
    ],
)
def test_what_cannot_be_searched_is_named(method: str, name: str, text: str, message: str) -> None:
    with pytest.raises(lb.errors.InputError, match=message):
        Space(method, {name: text})
