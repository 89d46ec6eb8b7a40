"""``leanbayes tune`` from its options to its record."""

import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from leanbayes.lab.cli import main
from leanbayes.lab.recipes import parse
from tests.lab.cli.shell import QUICK, complaint

SMALL = ["tune", "--data", "data.npz", *QUICK, "--batch-size", "60"]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).normal(size=(120, 3))
    np.savez(tmp_path / "data.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
    return tmp_path


def test_it_searches_goes_on_and_its_winner_can_be_trained(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search = ["--method", "partial", "--search", "kl_weight=1e-3..10:log", "rate=0.05,0.1", "--storage", "a/b/t.db"]
    assert main([*SMALL, *search, "--trials", "2", "--out", "run/deep"]) == 0
    message = capsys.readouterr().out
    record = json.loads((data / "run" / "deep" / "tune.json").read_text())
    assert "kl_weight" in message
    assert "NLL (validation)" in message
    assert f"best: {record['best']['method']}" in message
    assert f"{record['best']['value']:.4f}" in message
    assert main([*SMALL, *search, "--trials", "3", "--out", "run/deep", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result.pop("record") == "run/deep/tune.json"
    assert result == json.loads((data / "run" / "deep" / "tune.json").read_text())
    assert result["trials"][:2] == record["trials"]
    assert [row["state"] for row in result["trials"]] == ["done"] * 3
    for row in result["trials"]:
        recipe = parse(row["method"])
        assert recipe.kl_start == recipe.kl_end == row["values"]["kl_weight"]
        assert recipe.rate == row["values"]["rate"]
        assert row["metrics"]["nll"] == row["value"]
    assert main(["train", "--data", "data.npz", "--recipe", result["best"]["method"], "--out", "best", *QUICK]) == 0


def test_storage_is_in_the_folder_unless_it_is_said(data: Path) -> None:
    (data / "c.yaml").write_text("search: [rate=0.1..0.3]\nmethod: dropout\nmetric: accuracy\ntrials: 1\nepochs: 1\n")
    assert main(["tune", "--config", "c.yaml", "--data", "data.npz", "--out", "run", "--samples", "2", "--quiet"]) == 0
    assert {path.name for path in (data / "run").iterdir()} == {"tune.db", "tune.db.lock", "tune.json"}


BAD: dict[str, tuple[list[str], str]] = {
    "an unknown method": (["--method", "magic"], "unknown recipe 'magic'"),
    "an unknown field": (["--search", "colour=1..2"], "unknown option of vi to search 'colour'"),
    "no equals sign": (["--search", "kl_weight"], "--search takes"),
    "a field twice": (["--search", "kl_weight=1..2", "kl_weight=2..3"], "twice"),
    "no numbers": (["--search", "kl_weight=low..high"], "kl_weight must be a number, got 'low'"),
    "an empty range": (["--search", "kl_weight=2..1"], "empty"),
    "zero on a log scale": (["--search", "kl_weight=0..1:log"], "above 0"),
    "an unknown metric": (["--metric", "beauty"], "unknown metric 'beauty'"),
    "a metric of other tasks": (["--metric", "rmse"], "unknown metric of"),
    "nothing to search": (["--method", "deterministic"], "say what to search"),
    "no trials": (["--trials", "0"], "at least 1 trial"),
    "a storage that is no study": (["--storage", "data.npz"], "data.npz is no study"),
    "a storage below a file": (["--storage", "data.npz/t.db"], "data.npz"),
    "a folder that is a file": (["--out", "data.npz"], "data.npz"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_two(name: str, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, expected = BAD[name]
    before = (data / "data.npz").read_bytes()
    assert expected in complaint(capsys, *SMALL, *arguments)
    assert (data / "data.npz").read_bytes() == before


def test_another_study_and_trials_that_all_fail(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = [*SMALL, "--search", "kl_weight=0.1..1", "--trials", "1", "--out", "run"]
    assert main(first) == 0
    assert "split_seed was 0 and is now 1" in complaint(capsys, *first, "--split-seed", "1")
    assert "search.kl_weight was '0.1..1.0'" in complaint(capsys, *first, "--search", "kl_weight=0.1..2")
    message = complaint(capsys, *first, "--epochs", "1", "--study", "short")
    assert "none of 1 trials could be trained; the first error is: InputError: a recipe of two stages" in message
    with sqlite3.connect(data / "run" / "tune.db") as database:
        database.execute("DROP TABLE trials")
    database.close()
    assert "run/tune.db" in complaint(capsys, *first)
