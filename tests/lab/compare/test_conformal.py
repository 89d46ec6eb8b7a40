"""A comparison reports coverage with its interval, the size, and the coverage of classes, groups and sizes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import leanbayes as lb
from leanbayes.lab.compare import compare
from leanbayes.lab.compare.conformal import measure_guarantee
from leanbayes.lab.compare.run import Protocol
from leanbayes.lab.recipes import parse
from tests import tasks
from tests.lab.recipes.cases import BUDGET


def side(x: torch.Tensor) -> torch.Tensor:
    return (x[:, 0] > 0).long()


def test_the_columns_of_a_comparison(tmp_path: Path) -> None:
    specs = ("deterministic", "deterministic+conformal:level=0.7")
    task = replace(tasks.classes(), groups=side)
    results = compare(task, {spec: parse(spec) for spec in specs}, tmp_path, Protocol(budget=BUDGET))
    plain, conformal = (method["runs"][0]["metrics"] for method in results["methods"])
    assert not any(name.startswith("conformal") for name in plain)
    assert conformal["conformal_coverage/low"] < conformal["conformal_coverage"] <= conformal["conformal_coverage/high"]
    assert conformal["conformal_size"] > 0
    classes = {name for name in conformal if name.startswith("conformal_class_coverage/")}
    assert classes == {f"conformal_class_coverage/{name}" for name in task.classes}
    assert {"conformal_group_coverage/0", "conformal_group_coverage/1"} < conformal.keys()
    assert any(name.startswith("conformal_size_coverage/") for name in conformal)
    for metrics in (plain, conformal):
        assert metrics["size_at_90"] >= 0.9
    assert plain["size_at_90"] == pytest.approx(conformal["size_at_90"], abs=1e-6)


@pytest.mark.parametrize(("make", "metric"), [(tasks.regression, "conformal_size"), (tasks.pixels, "conformal_risk")])
def test_other_kinds(tmp_path: Path, make, metric: str) -> None:
    spec = "deterministic+conformal:level=0.7"
    results = compare(make(), {spec: parse(spec)}, tmp_path, Protocol(budget=BUDGET))
    assert results["methods"][0].get("error") is None
    assert metric in results["methods"][0]["runs"][0]["metrics"]


def test_counts_of_parts_add_up_and_classes_called_low_hide_nothing() -> None:
    x = 2 * torch.randn(900, 3, generator=torch.Generator().manual_seed(0))
    y = torch.distributions.Categorical(logits=x).sample()
    sets = lb.conformal.Sets(torch.nn.Identity(), 0.8, "lac").calibrate([(x[:300], y[:300])])
    task = replace(tasks.classes(), classes=("low", "high", "all"), groups=side)
    guarantee = measure_guarantee(sets, [(x[300:], y[300:])], task)
    ((_, covered, count),) = guarantee.arrays["conformal/all"].tolist()
    assert count == 600
    for part in ("class", "group", "size"):
        assert guarantee.arrays[f"conformal/{part}"][:, 1:].sum(0).tolist() == [covered, count]
    low, high = lb.conformal.clopper_pearson(int(covered), 600)
    assert guarantee.metrics["conformal_coverage/low"] == low
    assert guarantee.metrics["conformal_coverage/high"] == high
    hit = sets.sets(x[300:]).gather(1, y[300:, None])[:, 0].double()
    assert guarantee.metrics["conformal_class_coverage/low"] == pytest.approx(hit[y[300:] == 0].mean().item())
    assert guarantee.metrics["conformal_group_coverage/1"] == pytest.approx(hit[side(x[300:]) == 1].mean().item())
