"""Methods side by side: nothing is lost, nothing is done twice, and every figure has its arrays."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import leanbayes as lb
from leanbayes.evaluation.cost import training_flops
from leanbayes.lab.compare import Event, compare, judge, kind_of
from leanbayes.lab.recipes import Budget, Recipe, Run, parse, prepare
from tests import tasks

BUDGET = Budget(epochs=4, batch_size=30, lr=2e-2)


def named(*specs: str) -> dict[str, Recipe]:
    return {spec: parse(spec) for spec in specs}


@dataclass(frozen=True)
class Broken(Recipe):
    name = "broken"

    def train(self, task: Any, run: Run) -> nn.Module:
        raise lb.errors.NonFinite("step 3: the loss is nan\nand more")


@dataclass(frozen=True)
class Counted(Recipe):
    name = "counted"

    def train(self, task: Any, run: Run) -> nn.Module:
        CALLS.append(run.seed)
        return run.new_model(task)


CALLS: list[int] = []


def test_a_record_with_everything(tmp_path: Path) -> None:
    events: list[Event] = []
    task = tasks.classes()
    found = compare(
        task, named("deterministic", "partial"), tmp_path, seeds=(0, 1), budget=BUDGET, samples=4, watch=events.append,
        command="leanbayes compare",
    )  # fmt: skip
    written = json.loads((tmp_path / "results.json").read_text())
    assert written == json.loads(json.dumps(found))
    assert [row["name"] for row in written["methods"]] == ["deterministic", "partial"]
    for row in written["methods"]:
        assert row["error"] is None
        assert [run["seed"] for run in row["runs"]] == [0, 1]
        for run in row["runs"]:
            assert {"accuracy", "nll", "brier", "ece", "ood/far/auroc"} <= run["metrics"].keys()
            assert {"parameters", "random", "bytes", "train_seconds", "predict_seconds", "flops_forward"} <= run[
                "cost"
            ].keys()
    assert written["methods"][0]["layers"] == []
    assert sum(layer["random"] for layer in written["methods"][1]["layers"]) == 1
    assert written["better"]["accuracy"] == "high"
    assert written["task"] | {"shifted": None} == {
        "name": "blobs", "kind": "classes", "classes": ["a", "b", "c"], "train": 120, "validation": 30, "test": 60,
        "shifted": None,
    }  # fmt: skip
    assert "accuracy" in written["tests"]["paired"]
    arrays = load_file(tmp_path / "arrays.safetensors")
    assert arrays["partial/confidence"].shape == arrays["partial/correct"].shape == (60,)
    assert arrays["partial/shifted/far/entropy"].shape == (20,)
    assert (~arrays["partial/sigma"].isnan()).sum() == 1
    assert not (tmp_path / "checkpoints" / "partial-0").exists()
    assert isinstance(lb.load(tmp_path / "models" / "partial-1.lb", tasks.mlp()), lb.Bayesian)
    assert {event.stage for event in events if event.method == "partial"} == {
        "plain", "sensitivity", "partial", "evaluate",
    }  # fmt: skip
    assert all(0 <= event.done <= event.total for event in events)


def test_the_record_agrees_with_the_predictor(tmp_path: Path) -> None:
    task = tasks.classes()
    found = compare(task, named("deterministic"), tmp_path, budget=BUDGET)
    model = lb.load(tmp_path / "models" / "deterministic-0.lb", tasks.mlp())
    x, y = task.test[:]
    right = (model(x).argmax(1) == y).float()
    assert found["methods"][0]["runs"][0]["metrics"]["accuracy"] == pytest.approx(right.mean().item())
    assert torch.equal(load_file(tmp_path / "arrays.safetensors")["deterministic/correct"], right)


def test_a_failed_method_does_not_lose_the_others(tmp_path: Path) -> None:
    found = compare(
        tasks.classes(), {"broken": Broken(), "deterministic": parse("deterministic")}, tmp_path, budget=BUDGET
    )
    assert found["methods"][0]["error"] == "seed 0: NonFinite: step 3: the loss is nan"
    assert found["methods"][0]["runs"] == []
    assert len(found["methods"][1]["runs"]) == 1


def test_what_is_finished_is_not_done_again(tmp_path: Path) -> None:
    CALLS.clear()
    task = tasks.classes()
    compare(task, {"counted": Counted()}, tmp_path, budget=BUDGET)
    compare(task, {"counted": Counted()}, tmp_path, budget=BUDGET, seeds=(0, 1))
    assert CALLS == [0, 1]
    found = compare(task, {"counted": Counted(), "deterministic": parse("deterministic")}, tmp_path, budget=BUDGET)
    assert CALLS == [0, 1]
    assert [row["name"] for row in found["methods"]] == ["counted", "deterministic"]


def test_a_failed_method_is_tried_again(tmp_path: Path) -> None:
    compare(tasks.classes(), {"x": Broken()}, tmp_path, budget=BUDGET)
    found = compare(tasks.classes(), {"x": parse("deterministic")}, tmp_path, budget=BUDGET)
    assert found["methods"][0]["error"] is None
    assert len(found["methods"][0]["runs"]) == 1


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    compare(tasks.classes(), named("deterministic"), tmp_path / "a", budget=BUDGET)
    with pytest.raises(lb.errors.InputError, match="another folder"):
        compare(tasks.classes(), named("deterministic"), tmp_path / "a", budget=Budget(epochs=5))
    with pytest.raises(lb.errors.InputError, match="another folder"):
        compare(tasks.pixels(), named("deterministic"), tmp_path / "a", budget=BUDGET)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "results.json").write_text("[1, 2]")
    with pytest.raises(lb.errors.FileError, match="no comparison"):
        compare(tasks.classes(), named("deterministic"), tmp_path / "b", budget=BUDGET)


@pytest.mark.parametrize(
    ("make", "kind", "metric", "keys"),
    [
        (tasks.pictures, "classes", "ece", {"confidence", "certain/image", "uncertain/label", "sigma"}),
        (tasks.pixels, "pixels", "dice", {"confidence", "overlay/image", "overlay/truth", "overlay/entropy", "sigma"}),
        (tasks.regression, "regression", "crps", {"predicted", "deviation", "truth", "sigma"}),
    ],
)
def test_kinds(tmp_path: Path, make: Any, kind: str, metric: str, keys: set[str]) -> None:
    task = make()
    assert kind_of(task) == kind
    found = compare(task, named("partial:rate=0.2"), tmp_path, budget=BUDGET, samples=4)
    assert found["methods"][0]["error"] is None
    assert metric in found["methods"][0]["runs"][0]["metrics"]
    arrays = load_file(tmp_path / "arrays.safetensors")
    assert {f"partial:rate=0.2/{key}" for key in keys} <= arrays.keys()


def test_nothing_to_compare() -> None:
    with pytest.raises(lb.errors.InputError, match="at least one"):
        compare(tasks.classes(), {}, Path("nowhere"))


def test_a_training_step_is_counted_as_it_was_made_and_not_as_predictions_are() -> None:
    task, recipe = tasks.pictures(), parse("partial:propagate=flipout,predict=sample")
    trained = prepare(recipe, task, Run(BUDGET))
    bnn = trained.predictor
    assert (bnn.propagate, bnn.predict_by) == (lb.propagate.Flipout(), lb.propagate.Sample())
    x, y = task.test[:30]
    found = judge(recipe, trained, task, samples=2, batch_size=30, seed=0)["cost"]["flops_train"]
    by_flipout = training_flops(bnn, x, y, trained.likelihood)
    bnn.propagate = "sample"
    assert found == by_flipout > training_flops(bnn, x, y, trained.likelihood)
