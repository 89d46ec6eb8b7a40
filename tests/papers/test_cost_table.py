"""The formulas of Table 1 of sensitivity-guided subnetworks, by hand and against the recipes."""

import itertools

import pytest

from leanbayes.errors import InputError, UnknownName
from leanbayes.lab.recipes import parse
from leanbayes_papers.cost_table import formula_flops, table_1


@pytest.mark.parametrize(
    ("members", "samples", "rate", "pretraining"), [*itertools.product((1, 5), (1, 10), (0.0, 0.01, 1.0), (0, 30))]
)
def test_table_1_by_hand(members: int, samples: int, rate: float, pretraining: int) -> None:
    def row(method: str) -> tuple[float, float, float]:
        row = table_1(method, members=members, samples=samples, rate=rate, pretraining_epochs=pretraining)
        return row.parameters, row.flops, row.memory

    assert row("deterministic") == (1, 3, 1)
    assert row("ensemble") == (members, 3 * members, members)
    assert row("vi") == (2, 2 * samples + 2 * 2, 2)
    assert row("partial") == (
        1 + rate,
        pytest.approx((1 + rate) * samples + 2 * (1 + rate) + 3 * pretraining, rel=1e-12),
        2,
    )


def test_the_whole_training_in_one_unit() -> None:
    forward, epochs, pretraining = 1e6, 20, 50
    total = sum(3 * forward for _ in range(pretraining)) + sum(1.05 * 7 * forward for _ in range(epochs))
    flops = formula_flops("partial", forward, epochs=epochs, pretraining_epochs=pretraining, rate=0.05, samples=5)
    assert flops == pytest.approx(total, rel=1e-12)
    printed = table_1("partial", rate=0.05, samples=5, pretraining_epochs=pretraining).flops * forward
    once = formula_flops("partial", forward, epochs=1, pretraining_epochs=pretraining, rate=0.05, samples=5)
    assert once == pytest.approx(printed, rel=1e-12)
    assert formula_flops("ensemble", 10, epochs=4, members=3) == 3 * 3 * 10 * 4


def test_formulas_refuse_what_they_do_not_know() -> None:
    with pytest.raises(UnknownName, match="ensemble"):
        table_1("swag")
    for settings in ({"rate": 1.5}, {"rate": float("nan")}, {"members": 0}, {"samples": 0}, {"pretraining_epochs": -1}):
        with pytest.raises(InputError, match="at least"):
            table_1("partial", **settings)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="forward"):
        formula_flops("vi", float("nan"))


def test_recipes_carry_their_row() -> None:
    assert parse("deterministic").relative_cost() == table_1("deterministic")
    assert parse("ensemble:members=3").relative_cost() == table_1("ensemble", members=3)
    assert parse("vi:draws=4").relative_cost() == table_1("vi", samples=4)
    assert parse("partial:draws=4,rate=0.05").relative_cost() == table_1("partial", samples=4, rate=0.05)
    assert parse("dropout").relative_cost() is None
