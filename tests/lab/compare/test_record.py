"""The files of a comparison: what a run leaves, and what is refused."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import leanbayes as lb
from leanbayes.lab.compare import Judgement, is_main_process
from leanbayes.lab.compare.record import Record, _by_patient, file_name, summary_of
from leanbayes.lab.recipes import parse
from tests.lab.compare.cases import Broken, Counted, named

HEADER = {"format": 1, "task": {"name": "t"}, "about": {"model": "m"}, "budget": {"lr": 0.1}, "samples": 3}
NAMES = named("vi", "partial")


def record(folder: Path, **header: Any) -> Record:
    return Record(folder, HEADER | header, NAMES)


def test_a_run_is_read_again(tmp_path: Path) -> None:
    first = record(tmp_path)
    assert first.needs_arrays("vi")
    first.add("vi", NAMES["vi"], 0, Judgement({"nll": 0.5}, {"bytes": 4}, {"x": torch.ones(2)}), [])
    first.add("vi", NAMES["vi"], 1, Judgement({"nll": float("nan")}, {"bytes": 4}), [{"name": "l"}])
    first.fail("partial", NAMES["partial"], 0, ValueError("no\nmore"))
    for seed in (0, 1):
        lb.save(torch.nn.Linear(1, 1), first.model_file("vi", seed))
    again = record(tmp_path)
    assert again.results() == first.results()
    assert again.has("vi", 0)
    assert again.has("vi", 1)
    assert not again.has("partial", 0)
    assert not again.needs_arrays("vi")
    assert again.needs_arrays("partial")
    assert list(load_file(tmp_path / "arrays" / "vi.safetensors")) == ["vi/x"]
    vi, partial = again.results()["methods"]
    assert [run["metrics"]["nll"] for run in vi["runs"]] == [0.5, None]
    assert vi["layers"] == [{"name": "l"}]
    assert (partial["error"], partial["runs"]) == ("seed 0: ValueError: no", [])
    assert json.loads(json.dumps(again.write_results())) == json.loads((tmp_path / "results.json").read_text())


def test_the_movement_of_the_scales_is_on_record(tmp_path: Path) -> None:
    moved = {"vi": {"start": [0.05] * 5, "end": [0.1, 0.2, 0.3, 0.4, 0.5], "moved": 0.7, "steps": 40}}
    record(tmp_path).add("vi", NAMES["vi"], 0, Judgement({"nll": 0.5}, {}, {}, moved), [])
    (method,) = record(tmp_path).results()["methods"]
    assert method["runs"][0]["scales"] == moved


def test_a_run_without_its_model_is_not_complete(tmp_path: Path) -> None:
    """A comparison that was killed before it saved a model never made up for it."""
    runs = record(tmp_path)
    runs.add("vi", NAMES["vi"], 0, Judgement({"nll": 0.5}, {}), [])
    file = runs.model_file("vi", 0)
    assert not record(tmp_path).has("vi", 0)
    lb.save(torch.nn.Linear(1, 1), file)
    assert record(tmp_path).has("vi", 0)
    file.write_bytes(file.read_bytes()[:-2])
    assert not record(tmp_path).has("vi", 0)


def test_arrays_that_are_lost_are_made_again(tmp_path: Path) -> None:
    runs = record(tmp_path)
    runs.add("vi", NAMES["vi"], 0, Judgement({"nll": 0.5}, {}, {"x": torch.ones(2)}), [])
    lb.save(torch.nn.Linear(1, 1), runs.model_file("vi", 0))
    assert not record(tmp_path).needs_arrays("vi")
    (tmp_path / "arrays" / "vi.safetensors").unlink()
    assert record(tmp_path).needs_arrays("vi")


def test_nothing_is_written_for_no_run(tmp_path: Path) -> None:
    record(tmp_path).write_results()
    assert not (tmp_path / "results.json").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": "run"}', '{"kind": "tuning", "format": 1}'])
def test_a_file_that_is_no_run_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a.json").write_text(text)
    with pytest.raises(lb.errors.ForeignFile, match="not a run"):
        record(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        {"metrics": {"nll": {}}},
        {"metrics": {"nll": "0.5"}},
        {"metrics": {"nll": 10**400}},
        {"cost": None},
        {"layers": [1]},
        {"nll_by_members": [0.5, None]},
        {"scales": []},
        {"finished": 3},
        {"seed": "0"},
        {"recipe": "vi"},
        {"error": 0},
    ],
    ids=lambda damage: "".join(damage),
)
def test_a_damaged_run_is_refused_before_it_is_used(tmp_path: Path, damage: dict[str, Any]) -> None:
    """A field of another type gave an error of Python when the results were written, after hours of training."""
    record(tmp_path).add("vi", NAMES["vi"], 0, Judgement({"nll": 0.5, "ece": math.nan}, {"flops": 1}, {}), [])
    (file,) = (tmp_path / "runs").iterdir()
    record(tmp_path).results()
    file.write_text(json.dumps(json.loads(file.read_text()) | damage))
    with pytest.raises(lb.errors.ForeignFile, match="not a run of leanbayes compare, or is damaged"):
        record(tmp_path)


@pytest.mark.parametrize("other", [{"samples": 4}, {"budget": {"lr": 0.2}}, {"task": {"name": "u"}}, {"about": {}}])
def test_runs_of_another_comparison_are_refused(tmp_path: Path, other: dict[str, Any]) -> None:
    record(tmp_path).fail("vi", NAMES["vi"], 0, ValueError(""))
    with pytest.raises(lb.errors.InputError, match="another folder"):
        record(tmp_path, **other)


def test_a_comparison_without_runs_is_known_too(tmp_path: Path) -> None:
    """The checkpoints of its first training would continue under another budget."""
    record(tmp_path)
    with pytest.raises(lb.errors.InputError, match=r"budget.lr was 0.1 and is now 0.2; give another folder"):
        record(tmp_path, budget={"lr": 0.2})
    (tmp_path / "comparison.json").write_text("[" * 100_000)
    with pytest.raises(lb.errors.ForeignFile, match="not a comparison"):
        record(tmp_path)


def test_methods_that_would_share_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(lb.errors.InputError, match="share their files"):
        Record(tmp_path, HEADER, {"a:b": Broken(), "a/b": Broken()})


def test_only_the_main_process_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_main_process()
    monkeypatch.setenv("RANK", "1")
    assert not is_main_process()
    other = record(tmp_path)
    other.fail("vi", NAMES["vi"], 0, ValueError(""))
    other.write_results()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_names_of_files_and_summaries() -> None:
    assert file_name("../a b:rate=0.1+temperature") == ".._a_b_rate=0.1+temperature"
    assert summary_of(Broken()) == ""
    assert summary_of(Counted()) == "An untrained network that counts how often it is asked for."
    assert summary_of(parse("deterministic"))


def test_scores_of_a_patient_come_as_one() -> None:
    nll, weight = _by_patient(np.array([1.0, 2.0, 5.0]), np.array([1.0, 3.0, 2.0]), torch.tensor([0.0, 0.0, 2.0]))
    assert nll.tolist() == [1.75, 5.0]
    assert weight.tolist() == [4.0, 2.0]
