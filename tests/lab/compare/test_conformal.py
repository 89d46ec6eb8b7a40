"""A comparison reports coverage with its interval, the size and the coverage of each class."""

from pathlib import Path

import pytest

from leanbayes.lab.compare import compare
from leanbayes.lab.compare.run import Protocol
from leanbayes.lab.recipes import parse
from tests import tasks
from tests.lab.recipes.cases import BUDGET


def test_the_columns_of_a_comparison(tmp_path: Path) -> None:
    specs = ("deterministic", "deterministic+conformal:level=0.7")
    results = compare(tasks.classes(), {spec: parse(spec) for spec in specs}, tmp_path, Protocol(budget=BUDGET))
    plain, conformal = (method["runs"][0]["metrics"] for method in results["methods"])
    assert not any(name.startswith("conformal") for name in plain)
    assert conformal["conformal_coverage/low"] < conformal["conformal_coverage"] <= conformal["conformal_coverage/high"]
    assert conformal["conformal_size"] > 0
    classes = [name for name in conformal if name.startswith("conformal_coverage/")]
    assert len(classes) == 2 + len(tasks.classes().classes or ("0", "1"))
    for metrics in (plain, conformal):
        assert metrics["size_at_90"] >= 0.9
    assert plain["size_at_90"] == pytest.approx(conformal["size_at_90"], abs=1e-6)


@pytest.mark.parametrize(("make", "metric"), [(tasks.regression, "conformal_size"), (tasks.pixels, "conformal_risk")])
def test_other_kinds(tmp_path: Path, make, metric: str) -> None:
    spec = "deterministic+conformal:level=0.7"
    results = compare(make(), {spec: parse(spec)}, tmp_path, Protocol(budget=BUDGET))
    assert results["methods"][0].get("error") is None
    assert metric in results["methods"][0]["runs"][0]["metrics"]
