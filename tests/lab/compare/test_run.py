"""Methods side by side: nothing is lost, nothing is done twice, and every figure has its arrays."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import leanbayes as lb
from leanbayes.lab.compare import Event, Protocol, compare
from leanbayes.lab.data.fingerprint import fingerprint
from leanbayes.lab.processes import only_user_of
from leanbayes.lab.recipes import Budget, parse
from leanbayes.lab.report import comparison_table, write_report
from leanbayes.metrics import METRICS, Metric, mean_of
from leanbayes.prediction import Prediction
from tests import tasks
from tests.lab.compare.cases import BUDGET, CALLS, Broken, Counted, named

ONE_SEED = Protocol(budget=BUDGET)


def test_too_few_epochs_for_one_method_are_found_before_another_is_trained(tmp_path: Path) -> None:
    with pytest.raises(lb.errors.InputError, match="1 epoch, and partial needs at least 2; take more epochs"):
        compare(tasks.classes(), named("deterministic", "partial"), tmp_path, Protocol(budget=Budget(epochs=1)))
    assert list(tmp_path.iterdir()) == []


def test_a_record_with_everything(tmp_path: Path) -> None:
    events: list[Event] = []
    task = tasks.classes()
    result = compare(
        task, named("deterministic", "partial"), tmp_path, Protocol((0, 1), BUDGET, 4), watch=events.append,
        command="leanbayes compare",
    )  # fmt: skip
    written = json.loads((tmp_path / "results.json").read_text())
    assert written == json.loads(json.dumps(result))
    assert [row["name"] for row in written["methods"]] == ["deterministic", "partial"]
    for row in written["methods"]:
        assert row["error"] is None
        assert row["summary"]
        assert [run["seed"] for run in row["runs"]] == [0, 1]
        for run in row["runs"]:
            assert {"accuracy", "nll", "brier", "ece", "ood/far/auroc"} <= run["metrics"].keys()
            assert {"parameters", "random", "bytes", "train_seconds", "predict_seconds", "flops_forward"} <= run[
                "cost"
            ].keys()
    assert written["methods"][0]["layers"] == []
    assert sum(layer["random"] for layer in written["methods"][1]["layers"]) == 1
    assert written["better"]["accuracy"] == "high"
    assert {"platform", "cores", "threads", "python", "torch"} <= written["machine"].keys()
    assert {"commit", "changed_since_commit"} <= written.keys()
    assert written["task"] | {"shifted": None} == {
        "fingerprint": fingerprint(tasks.classes()),
        "name": "blobs", "kind": "classes", "classes": ["a", "b", "c"], "train": 120, "validation": 30, "test": 60,
        "shifted": None,
    }  # fmt: skip
    assert "accuracy" in written["tests"]["paired"]
    arrays = load_file(tmp_path / "arrays" / "partial.safetensors")
    assert arrays["partial/confidence"].shape == arrays["partial/correct"].shape == (60,)
    assert arrays["partial/shifted/far/entropy"].shape == (20,)
    assert (~arrays["partial/sigma"].isnan()).sum() == 1
    assert not (tmp_path / "checkpoints" / "partial-0").exists()
    assert isinstance(lb.load(tmp_path / "models" / "partial-1.lb", tasks.mlp()), lb.Bayesian)
    assert {event.stage for event in events if event.method == "partial"} == {
        "plain", "sensitivity", "partial", "evaluate", "end",
    }  # fmt: skip
    assert all(0 <= event.done <= event.total for event in events)


def test_the_record_agrees_with_the_predictor(tmp_path: Path) -> None:
    task = tasks.classes()
    result = compare(task, named("deterministic"), tmp_path, ONE_SEED)
    model = lb.load(tmp_path / "models" / "deterministic-0.lb", tasks.mlp())
    x, y = task.test[:]
    right = (model(x).argmax(1) == y).float()
    assert result["methods"][0]["runs"][0]["metrics"]["accuracy"] == pytest.approx(right.mean().item())
    arrays = load_file(tmp_path / "arrays" / "deterministic.safetensors")
    assert torch.equal(arrays["deterministic/correct"], right)


def test_each_file_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda self, to: (written.append(str(to)), replace(self, to))[1])
    compare(tasks.classes(), named("deterministic", "partial"), tmp_path, Protocol((0, 1), BUDGET, 4))
    kept = [path for path in written if "checkpoints" not in path]
    assert sorted(kept) == sorted(set(kept))
    assert {str(path) for path in tmp_path.rglob("*") if path.is_file()} == set(kept)


def test_a_metric_from_outside_is_in_the_record_the_table_and_the_page(tmp_path: Path) -> None:
    def margin(prediction: Prediction, targets: Tensor) -> Tensor:
        top = prediction.mean.topk(2, dim=1).values
        return top[:, 0] - top[:, 1]

    metric = Metric("margin", "high", "Margin", "The mean gap between the best two.", mean_of("margin", margin))
    with METRICS.replacing(metric):
        result = compare(tasks.classes(), named("deterministic", "partial"), tmp_path, ONE_SEED)
        rows = comparison_table(result)
        page = write_report(tmp_path).read_text()
    assert all(0 < row["runs"][0]["metrics"]["margin"] < 1 for row in result["methods"])
    assert result["better"]["margin"] == "high"
    assert sorted(row.cells["margin"].best for row in rows) == [False, True]
    assert "Margin, higher is better" in page
    assert "The mean gap between the best two. Higher is better." in page


def test_a_failed_method_does_not_lose_the_others(tmp_path: Path) -> None:
    result = compare(tasks.classes(), {"broken": Broken(), "deterministic": parse("deterministic")}, tmp_path, ONE_SEED)
    assert result["methods"][0]["error"] == "seed 0: NonFinite: step 3: the loss is nan"
    assert result["methods"][0]["runs"] == []
    assert len(result["methods"][1]["runs"]) == 1


def test_what_is_finished_is_not_done_again(tmp_path: Path) -> None:
    CALLS.clear()
    task = tasks.classes()
    compare(task, {"counted": Counted()}, tmp_path, ONE_SEED)
    compare(task, {"counted": Counted()}, tmp_path, Protocol((0, 1), BUDGET))
    assert CALLS == [0, 1]
    both = {"deterministic": parse("deterministic"), "counted": Counted()}
    result = compare(task, both, tmp_path, ONE_SEED)
    assert CALLS == [0, 1]
    assert [row["name"] for row in result["methods"]] == ["counted", "deterministic"]


def test_another_recipe_under_the_same_name_begins_anew(tmp_path: Path) -> None:
    CALLS.clear()
    compare(tasks.classes(), {"counted": Counted()}, tmp_path, Protocol((0, 1), BUDGET))
    result = compare(tasks.classes(), {"counted": Counted(rate=0.5)}, tmp_path, ONE_SEED)
    assert CALLS == [0, 1, 0]
    assert result["methods"][0]["recipe"]["rate"] == 0.5
    assert [run["seed"] for run in result["methods"][0]["runs"]] == [0]


def test_a_failed_method_is_tried_again(tmp_path: Path) -> None:
    compare(tasks.classes(), {"x": Broken()}, tmp_path, ONE_SEED)
    result = compare(tasks.classes(), {"x": parse("deterministic")}, tmp_path, ONE_SEED)
    assert result["methods"][0]["error"] is None
    assert len(result["methods"][0]["runs"]) == 1


def test_a_model_that_is_missing_is_trained_again(tmp_path: Path) -> None:
    """A result without its model was taken as complete for ever."""
    first = compare(tasks.classes(), named("deterministic"), tmp_path, ONE_SEED)
    model = tmp_path / "models" / "deterministic-0.lb"
    before = load_file(model)
    model.unlink()
    again = compare(tasks.classes(), named("deterministic"), tmp_path, ONE_SEED)
    assert {name: value.tolist() for name, value in load_file(model).items()} == {
        name: value.tolist() for name, value in before.items()
    }
    metrics = [record["methods"][0]["runs"][0]["metrics"] for record in (first, again)]
    assert metrics[0] == metrics[1]


def test_one_comparison_at_a_time_has_a_folder(tmp_path: Path) -> None:
    """Two comparisons in one folder at once lost the results of one of them."""
    with only_user_of(tmp_path), pytest.raises(lb.errors.FileError, match="uses the folder"):
        compare(tasks.classes(), named("deterministic"), tmp_path, ONE_SEED)
    assert list(tmp_path.iterdir()) == []


def test_what_a_disturbed_comparison_left_is_swept(tmp_path: Path) -> None:
    """Hidden folders, and the checkpoints of methods that were complete, stayed when there was nothing left to do."""
    task, both = tasks.classes(), named("deterministic", "vi")
    compare(task, both, tmp_path, ONE_SEED)
    whole = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    for folder in (".", "runs", "models", "arrays", "checkpoints"):
        left = tmp_path / folder / ".x.00000000-1-0123abcd.part"  # of another machine, or a process number that is used
        left.mkdir()
        (left / "x").write_bytes(b"half")
    for name in both:
        (tmp_path / "checkpoints" / f"{name}-0" / "plain").mkdir(parents=True)
    (tmp_path / "checkpoints" / "lean-0").mkdir()  # a training that was not finished
    compare(task, named("deterministic"), tmp_path, ONE_SEED)
    unfinished = Path("checkpoints", "lean-0")
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == sorted([*whole, unfinished])


def test_a_folder_in_use_is_not_swept(tmp_path: Path) -> None:
    compare(tasks.classes(), named("deterministic"), tmp_path, ONE_SEED)
    part = tmp_path / "models" / ".x.00000000-1-0123abcd.part"
    part.mkdir()
    with only_user_of(tmp_path), pytest.raises(lb.errors.FileError, match="uses the folder"):
        compare(tasks.classes(), named("deterministic"), tmp_path, ONE_SEED)
    assert part.exists()
    with pytest.raises(lb.errors.InputError, match="another folder"):  # nor is that of another comparison
        compare(tasks.classes(), named("deterministic"), tmp_path, Protocol(budget=Budget(epochs=5)))
    assert part.exists()


def test_checkpoints_of_another_recipe_under_the_same_name_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stayed, so each later training under this name failed, because they belonged to another training."""
    with monkeypatch.context() as patch:
        patch.setattr("leanbayes.lab.compare.single.judge", _no_memory)
        failed = compare(tasks.classes(), {"x": parse("vi")}, tmp_path, ONE_SEED)
    assert failed["methods"][0]["error"] == "seed 0: RuntimeError: no memory"
    assert list((tmp_path / "checkpoints" / "x-0").rglob("step-*"))
    result = compare(tasks.classes(), {"x": parse("vi:init_scale=0.3")}, tmp_path, ONE_SEED)
    assert result["methods"][0]["error"] is None
    assert not list((tmp_path / "checkpoints").iterdir())


def _no_memory(*_: object, **__: object) -> None:
    raise RuntimeError("no memory")


def test_other_data_of_the_same_size_are_refused(tmp_path: Path) -> None:
    """A comparison continued on data that had changed, if they had the same name and size."""
    compare(tasks.classes(), named("deterministic"), tmp_path, ONE_SEED)
    task = tasks.classes()
    task.test.tensors[0][0, 0] += 1  # type: ignore[attr-defined]
    with pytest.raises(lb.errors.InputError, match="fingerprint"):
        compare(task, named("deterministic"), tmp_path, ONE_SEED)


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    compare(tasks.classes(), named("deterministic"), tmp_path / "a", ONE_SEED)
    with pytest.raises(lb.errors.InputError, match="another folder"):
        compare(tasks.classes(), named("deterministic"), tmp_path / "a", Protocol(budget=Budget(epochs=5)))
    with pytest.raises(lb.errors.InputError, match="another folder"):
        compare(tasks.pixels(), named("deterministic"), tmp_path / "a", ONE_SEED)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "results.json").write_text("[1, 2]")
    with pytest.raises(lb.errors.FileError, match="no comparison"):
        compare(tasks.classes(), named("deterministic"), tmp_path / "b", ONE_SEED)
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["results.json"]


@pytest.mark.parametrize(
    ("make", "kind", "metric", "keys"),
    [
        (tasks.pictures, "classes", "ece", {"confidence", "certain/image", "uncertain/label", "sigma"}),
        (tasks.pixels, "pixels", "dice", {"confidence", "overlay/image", "overlay/truth", "overlay/entropy", "sigma"}),
        (tasks.regression, "regression", "crps", {"predicted", "deviation", "truth", "sigma"}),
    ],
)
def test_kinds(tmp_path: Path, make: Any, kind: str, metric: str, keys: set[str]) -> None:
    result = compare(make(), named("partial:rate=0.2"), tmp_path, Protocol(budget=BUDGET, samples=4))
    assert result["task"]["kind"] == kind
    assert result["methods"][0]["error"] is None
    assert metric in result["methods"][0]["runs"][0]["metrics"]
    arrays = load_file(tmp_path / "arrays" / "partial_rate=0.2.safetensors")
    assert {f"partial:rate=0.2/{key}" for key in keys} <= arrays.keys()


def test_nothing_to_compare() -> None:
    with pytest.raises(lb.errors.InputError, match="at least one recipe"):
        compare(tasks.classes(), {}, Path("nowhere"))
    with pytest.raises(lb.errors.InputError, match="at least one seed"):
        Protocol(seeds=())
    with pytest.raises(lb.errors.InputError, match="each seed once"):
        Protocol(seeds=(1, 1))
    with pytest.raises(lb.errors.InputError, match="samples must be at least 1"):
        Protocol(samples=0)
