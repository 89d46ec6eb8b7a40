"""A study finds a known optimum, is done once by however many processes, and goes on after a kill."""

import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import Mock

import pytest

import leanbayes as lb
from leanbayes.lab.jobs import Crew, Patience, plan_of
from leanbayes.lab.recipes import Budget
from leanbayes.lab.tune import Search, search, tune
from tests import tasks
from tests.lab.tune.bowl import BEST, LEAST, SEARCH, SURE, Bowl, nll_at, tuned

ROOT = Path(__file__).parents[3]
ONLY_X = {"x": SEARCH["x"]}


def what(result: dict[str, Any]) -> list[Any]:
    return [(row["trial"], row["values"], row["value"]) for row in result["trials"] if row["state"] == "done"]


# ---------------------------------------------------------------- the search


def test_it_finds_the_optimum_without_the_test_set(tmp_path: Path) -> None:
    result = tuned(tmp_path / "new" / "t.db", 24, options=ONLY_X, out=tmp_path / "tune.json", command="typed")
    best = result["best"]
    assert LEAST <= best["value"] < LEAST + 2e-3
    assert BEST / 2 < best["values"]["x"] < BEST * 2
    assert best["value"] == min(row["value"] for row in result["trials"])
    assert [row["trial"] for row in result["trials"]] == list(range(24))
    later = median(row["value"] - LEAST for row in result["trials"][12:])
    assert later < median(nll_at(10 ** (power / 100)) - LEAST for power in range(-300, 101)) / 2  # than by chance
    for row in result["trials"]:
        assert row["value"] == pytest.approx(nll_at(row["values"]["x"]), abs=1e-6)
    record = json.loads((tmp_path / "tune.json").read_text())
    assert record == json.loads(json.dumps(result))
    assert (record["command"], record["seed"], record["metric"], record["better"]) == ("typed", 0, "nll", "low")
    assert record["search"] == {"x": "0.001..10.0:log"}
    assert {"accuracy", "brier", "ece"} <= best["metrics"].keys()
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["t.db", "t.db.lock"]


def test_high_is_better_for_accuracy_and_options_are_of_every_kind(tmp_path: Path) -> None:
    result = tuned(tmp_path / "t.db", 8, metric="accuracy")
    assert result["better"] == "high"
    for row in result["trials"]:
        assert row["value"] == (0.75 if row["values"]["x"] > SURE * 10 ** (-0.1 * (row["values"]["n"] - 1)) else 0.25)
    assert {row["value"] for row in result["trials"]} == {0.25, 0.75}
    assert result["best"] == next(row for row in result["trials"] if row["value"] == 0.75)
    assert {row["values"]["word"] for row in result["trials"]} == {"a", "b"}
    assert {row["values"]["n"] for row in result["trials"]} == {1, 2, 3}


def test_a_real_recipe_prefers_a_small_weight_and_trains_its_plain_start_once(tmp_path: Path) -> None:
    stages: list[tuple[str, int, int]] = []
    result = tune(
        tasks.classes(),
        "vi:prior=normal,init_scale=0.5",
        Search({"kl_weight": "0.01,100"}, 4, seed=1, budget=Budget(epochs=6, batch_size=30, lr=2e-2), samples=8),
        storage=tmp_path / "t.db",
        watch=lambda *event: stages.append(event),
    )
    values = {
        weight: {row["value"] for row in result["trials"] if row["values"]["kl_weight"] == weight}
        for weight in (0.01, 100)
    }
    assert {len(each) for each in values.values()} == {1}  # the same seed gives the same score
    assert max(values[0.01]) < min(values[100])
    assert result["best"]["method"] == "vi:prior=normal,init_scale=0.5,kl_start=0.01,kl_end=0.01"
    assert [stage for stage, _, _ in stages if stage.endswith("plain")] == ["trial 0, plain"] * 3
    assert [event for event in stages if event[0] == "trials"] == [("trials", done, 4) for done in range(5)]


def test_a_seed_gives_one_search_stopped_or_not_and_nothing_is_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("unpickled")

    whole = tuned(tmp_path / "a.db", 11)
    assert len({row["method"] for row in whole["trials"]}) == 11
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    for trials in (3, 10, 11):  # the last draw goes by what the storage holds
        part = tuned(tmp_path / "b.db", trials)
    assert what(part) == what(whole)
    assert len(tuned(tmp_path / "b.db", 5)["trials"]) == 11  # fewer than there are: nothing to do
    other = tuned(tmp_path / "c.db", 2, seed=1)
    assert not {row["method"] for row in other["trials"]} & {row["method"] for row in whole["trials"]}


def test_what_cannot_be_trained_fails_once_and_the_others_go_on(tmp_path: Path) -> None:
    for _ in range(2):
        result = tuned(tmp_path / "t.db", 5, "bowl:limit=0.5")
        states = {row["values"]["x"] > 0.5: row["state"] for row in result["trials"]}
        assert states == {True: "failed", False: "done"}
        assert len(result["trials"]) == 5
        errors = {row["error"] for row in result["trials"] if row["state"] == "failed"}
        assert all(error.startswith("RuntimeError: x is ") and "\n" not in error for error in errors)
    nothing = tuned(tmp_path / "u.db", 2, "bowl:limit=0")
    assert nothing["best"] is None


# ---------------------------------------------------------------- processes


def test_two_processes_do_each_trial_once_and_one_is_killed(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Up to the tenth, draws depend on the slot alone: so the result must be that of one process, left in peace."""
    log, storage = tmp_path / "log", tmp_path / "t [1]#.db"
    method = f"bowl:log={log},seconds=0.05"
    command = [sys.executable, "-m", "tests.lab.tune.bowl", str(storage), "10", method]
    other = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"HANG_AT": "5"})
    request.addfinalizer(lambda: (other.kill(), other.wait()))

    def until(lines: int) -> None:
        end = time.monotonic() + 300
        while not log.exists() or log.read_text().count(f"{other.pid} ") < lines:
            assert other.poll() is None
            assert time.monotonic() < end
            time.sleep(0.01)

    until(2)
    tuned(storage, 6, method, options=ONLY_X)  # side by side; four are left for the other alone
    until(5)  # which does not end
    result = tuned(storage, 10, method, options=ONLY_X)
    assert sorted(row["state"] for row in result["trials"]) == ["done"] * 9 + ["running"]
    other.kill()
    other.wait()
    assert len(list(tmp_path.glob("*.worker"))) == 1
    result = tuned(storage, 10, method, options=ONLY_X)
    assert not list(tmp_path.glob("*.worker"))
    assert sorted(row["state"] for row in result["trials"]) == ["done"] * 10 + ["killed"]
    trained = [line.split() for line in log.read_text().splitlines()]
    assert [pid for pid, _ in trained].count(str(other.pid)) == 5
    assert sorted(x for _, x in trained) == sorted(str(row["values"]["x"]) for row in result["trials"])
    assert len({x for _, x in trained}) == 10
    whole = tuned(tmp_path / "whole.db", 10, options=ONLY_X)
    assert what(result) == what(whole)
    assert [slot for slot, _, _ in what(result)] == list(range(10))


def test_what_was_interrupted_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Bowl, "train", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            tuned(tmp_path / "t.db", 2)
    result = tuned(tmp_path / "t.db", 2)
    assert [(row["trial"], row["state"]) for row in result["trials"]] == [(0, "killed"), (0, "done"), (1, "done")]
    assert result["trials"][0]["method"] == result["trials"][1]["method"]


# ---------------------------------------------------------------- what is refused, before any training


DIFFERENT: list[tuple[dict[str, Any], str]] = [
    ({"seed": 1}, "seed was 0 and is now 1"),
    ({"options": {"x": "0.001..10"}}, "search.x was '0.001..10.0:log' and is now '0.001..10.0'; search.n was '1..3'"),
    ({"method": "bowl:limit=3"}, "recipe.limit was inf and is now 3.0"),
    ({"metric": "ece"}, "metric was 'nll' and is now 'ece'"),
    ({"budget": Budget(epochs=2)}, "budget.epochs was 1 and is now 2"),
    ({"about": {"model": "big"}}, "about.model was None and is now 'big'"),
]


def test_another_study_is_not_gone_on_with(tmp_path: Path) -> None:
    tuned(tmp_path / "t.db", 1)
    for change, message in DIFFERENT:
        with pytest.raises(lb.errors.InputError) as error:
            tuned(tmp_path / "t.db", 2, **change)
        assert message in str(error.value)
    assert len(tuned(tmp_path / "t.db", 1)["trials"]) == 1
    assert len(tuned(tmp_path / "t.db", 1, study="another", **change)["trials"]) == 1


def test_another_task_is_not_gone_on_with(tmp_path: Path) -> None:
    tuned(tmp_path / "t.db", 1)
    with pytest.raises(lb.errors.InputError, match=r"task.name was 'bowl' and is now 'blobs'"):
        tune(tasks.classes(), "bowl", Search({"x": "1..2"}, trials=1), storage=tmp_path / "t.db")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "beauty"}, "unknown metric 'beauty'"),
        ({"metric": "entropy"}, "neither high nor low"),
        ({"metric": "rmse"}, "unknown metric of 'bowl' 'rmse'; choose from"),
        ({"metric": "ood/far/auroc"}, "shifted"),
        ({"trials": 0}, "at least 1 trial"),
        ({"samples": 0}, "at least 1 trial and 1 sample"),
        ({"options": {"n": "0..3"}}, "n must be at least 1, got 0"),
        ({"options": {}}, "say what to search"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(lb.errors.InputError, match=message):
        tuned(tmp_path / "t.db", **{"trials": 1} | options)
    assert not list(tmp_path.iterdir())


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.db").mkdir()
    for storage in (tmp_path / "file" / "t.db", tmp_path / "folder.db"):
        with pytest.raises(lb.errors.FileError, match="cannot use"):
            tuned(storage, 1)
    with pytest.raises(lb.errors.FileError, match="cannot save"):
        tuned(tmp_path / "t.db", 1, "bowl:log=" + str(tmp_path / "log"), out=tmp_path / "nowhere" / "tune.json")
    assert not (tmp_path / "log").exists()


def test_several_processes_of_one_training_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(lb.errors.InputError, match="several times"):
        tuned(tmp_path / "t.db", 1)


# ---------------------------------------------------------------- the trials as jobs of a queue


def crew() -> Crew:
    return Crew(plan_of("shared"), patience=Patience(beat=0.02, silence=0.3, look=0.01))


def test_a_crew_of_one_finds_what_one_process_finds(tmp_path: Path) -> None:
    alone = tuned(tmp_path / "a.db", 6)
    together = tuned(tmp_path / "b.db", 6, crew=crew(), out=tmp_path / "tune.json")
    assert what(together) == what(alone)
    assert json.loads((tmp_path / "tune.json").read_text())["best"]["trial"] == alone["best"]["trial"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.db", "a.db.lock", "b.db", "tune.json"]
    more = tuned(tmp_path / "b.db", 8, crew=crew())
    assert what(more)[:6] == what(alone)
    assert len(what(more)) == 8


def test_a_crew_that_was_stopped_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = tuned(tmp_path / "a.db", 5)
    real, count = search._trained, 0

    def interrupted(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            raise KeyboardInterrupt
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(search, "_trained", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tuned(tmp_path / "b.db", 5, crew=crew())
    with pytest.raises(lb.errors.FileError, match="continue with --executor shared, or remove"):
        tuned(tmp_path / "b.db", 5)
    assert what(tuned(tmp_path / "b.db", 5, crew=crew())) == what(alone)
