"""Predictions in shards, from the shell: the same whoever does them, continued after a stop, and refused elsewhere."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from leanbayes import Bayesian, save
from leanbayes.lab.cli import main
from leanbayes.lab.cli import sharded as module
from leanbayes.lab.cli.sharded import Throughput
from leanbayes.lab.data import Preparation
from leanbayes.lab.models import model_named
from tests.lab.cli.shell import complaint, rows_of, run

FEATURES = Preparation("classes", (0.0,) * 3, (1.0,) * 3, ("no", "yes"), features=("a", "b", "c"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        bnn = Bayesian(model_named("mlp", **FEATURES.shape))
    save(bnn, tmp_path / "model.lb", about={"model": "mlp", "preparation": FEATURES.to_json()})
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).normal(size=(50, 3)))
    return tmp_path


WORDS = ["predict", "model.lb", "x.npz", "--samples", "2", "--shard-size", "8", "--quiet"]


def tables(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.glob("shards/*/predictions.csv"))]


def test_every_input_is_in_one_shard(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(*WORDS, "--out", "said", "--json")
    result = json.loads(capsys.readouterr().out)
    assert (result["inputs"], result["shards"]) == (50, 7)
    assert result["inputs_per_second"] > 0
    manifest = json.loads((folder / "said" / "manifest.json").read_text())
    rows = [row for shard in manifest["shards"] for row in rows_of(folder / "said" / shard["path"])]
    assert [row["name"] for row in rows] == [str(index) for index in range(50)]
    assert [shard["inputs"] for shard in manifest["shards"]] == [8] * 6 + [2]
    assert sorted(path.name for path in (folder / "said").iterdir()) == ["manifest.json", "shards"]
    run(*WORDS, "--out", "again", "--executor", "shared")
    assert tables(folder / "again") == tables(folder / "said")


def test_a_run_that_was_stopped_continues(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(*WORDS, "--out", "whole")
    real, count = module.predict_cases, 0

    def interrupted(*arguments: object, **options: object) -> object:
        nonlocal count
        count += 1
        if count == 4:
            raise KeyboardInterrupt
        return real(*arguments, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(module, "predict_cases", interrupted)
        assert main([*WORDS, "--out", "said"]) == 130
    assert len(tables(folder / "said")) == 3
    run(*WORDS, "--out", "said")
    assert tables(folder / "said") == tables(folder / "whole")
    assert not (folder / "said" / "queue").exists()


def test_a_shard_that_fails_is_named_and_tried_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = module.read_part

    def broken(path: Path, part: dict, plan: Preparation) -> object:
        if part["start"] == 16:
            raise OSError("the cable is loose")
        return real(path, part, plan)

    with monkeypatch.context() as patch:
        patch.setattr(module, "read_part", broken)
        message = complaint(capsys, *WORDS, "--out", "said")
        assert "1 of 7 shards failed, the others are done; the first is shard-000002: OSError: the cable is" in message
    run(*WORDS, "--out", "said")
    assert len(tables(folder / "said")) == 7


def test_the_folder_of_another_run_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(*WORDS, "--out", "said")
    message = complaint(capsys, *WORDS, "--out", "said", "--seed", "1")
    assert "said holds the predictions of another run: seed was '0' and is now '1'; give another folder" in message
    (folder / "said" / "manifest.json").unlink()
    assert "give another folder, or remove it" in complaint(capsys, *WORDS, "--out", "said")
    (folder / "said" / "manifest.json").write_text("{}")
    assert "is no manifest of leanbayes predict" in complaint(capsys, *WORDS, "--out", "said")


def test_a_page_of_shards_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--review shows all cases on one page" in complaint(capsys, *WORDS, "--review", "--out", "said")
    assert "--shard-size must be at least 1" in complaint(capsys, *WORDS[:5], "--shard-size", "0")
    assert "unknown executor 'cloud'" in complaint(capsys, *WORDS, "--executor", "cloud")


def test_the_throughput_is_shown_in_words() -> None:
    assert str(Throughput(61_000, 100_000, 3_410.2)) == "61,000 of 100,000 inputs, 3,410 inputs/s, 11 s left"
    assert len(str(Throughput(10**7, 10**7, 10**5))) < 80
