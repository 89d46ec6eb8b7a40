"""How many networks each method of a comparison is worth."""

import math
from pathlib import Path
from typing import Any

import pytest

from leanbayes.lab.compare import Protocol, compare
from leanbayes.lab.compare.equivalents import equivalents
from leanbayes.lab.report import comparison_table
from tests import tasks
from tests.lab.compare.cases import BUDGET, named

CURVE = [0.5, 0.4, 0.3]


def method(name: str, *nlls: Any, curve: list[float] | None = None, recipe: str = "vi") -> dict[str, Any]:
    runs = [{"seed": seed, "metrics": {"nll": nll}} for seed, nll in enumerate(nlls)]
    if curve is not None:
        runs = [run | {"nll_by_members": curve} for run in runs]
    return {"name": name, "recipe": {"name": recipe}, "runs": runs}


def test_values_and_the_two_ends() -> None:
    ensemble = method("ensemble", 0.3, curve=CURVE, recipe="ensemble")
    others = [method("a", 0.35), method("b", 0.6), method("c", 0.1), method("d", None), method("e"),
              method("f", math.nan), method("g", 0.3, 0.4)]  # fmt: skip
    record = equivalents([ensemble, *others])
    assert (record["ensemble"], record["nll"], record["reason"]) == ("ensemble", CURVE, None)
    texts = {name: of["text"] for name, of in record["methods"].items()}
    assert texts == {"ensemble": "3.0", "a": "2.5", "b": "<1", "c": ">3", "g": "2.5"}
    assert [record["methods"][name]["value"] for name in "bc"] == [None, None]


def test_several_seeds_and_several_ensembles() -> None:
    small = method("small", 0.2, curve=[0.4, 0.2], recipe="ensemble")
    large = method("large", 0.3, 0.3, curve=CURVE, recipe="ensemble")
    large["runs"][1]["nll_by_members"] = [0.7, 0.6, 0.5]
    record = equivalents([small, large, method("a", 0.5)])
    assert record["ensemble"] == "large"
    assert record["nll"] == pytest.approx([0.6, 0.5, 0.4])
    assert record["methods"]["a"]["value"] == pytest.approx(2.0)


def test_the_reason_if_there_is_none() -> None:
    assert "add ensemble" in equivalents([method("a", 0.3)])["reason"]
    assert "add ensemble" in equivalents([method("x", recipe="ensemble")])["reason"]  # it failed
    assert "older version" in equivalents([method("x", 0.3, recipe="ensemble")])["reason"]


def test_a_comparison_has_the_column_and_the_json(tmp_path: Path) -> None:
    result = compare(tasks.classes(), named("deterministic", "ensemble:members=2"), tmp_path, Protocol(budget=BUDGET))
    record = result["ensemble_equivalent"]
    assert record["methods"]["ensemble:members=2"]["value"] == pytest.approx(2.0)
    plain, ensemble = comparison_table(result)
    assert ensemble.cells["ensemble_equivalent"].text == "2.0"
    assert plain.cells["ensemble_equivalent"].text == record["methods"]["deterministic"]["text"]
    assert list(plain.cells) == list(ensemble.cells)
    again = compare(tasks.classes(), named("deterministic"), tmp_path, Protocol(budget=BUDGET))  # from the files
    assert again["ensemble_equivalent"] == record
