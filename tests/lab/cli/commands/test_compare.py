"""``leanbayes compare`` from the shell: after a kill, and when a method fails."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from leanbayes.lab.cli import main
from tests.lab.cli.shell import QUICK, rows_of, run, shell


def test_compare_goes_on_after_a_kill_and_writes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["compare", "--methods", "deterministic", "partial", "--out", "run", *QUICK, "--batch-size", "100"]
    process = subprocess.Popen(
        [sys.executable, "-m", "leanbayes.lab.cli", *command],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    first_run = tmp_path / "run" / "runs" / "deterministic-0.json"
    while not first_run.exists() and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.wait()
    first = json.loads(first_run.read_text())
    result = json.loads(shell(*command, "--json", folder=tmp_path))
    assert result["methods"][0]["runs"] == [{key: first[key] for key in ("seed", "metrics", "cost", "scales")}]
    assert [row["name"] for row in result["methods"]] == ["deterministic", "partial"]
    assert result["command"].startswith("leanbayes compare --methods deterministic partial")
    page = (tmp_path / "run" / "report.html").read_text()
    assert "partial" in page
    (tmp_path / "run" / "report.html").unlink()
    run("report", "run", "--out", "page.html")
    assert (tmp_path / "page.html").read_text().startswith("<!")
    digits = np.zeros((2, 1, 8, 8), np.float32)
    np.savez(tmp_path / "new.npz", x=digits)
    run("predict", "run/models/partial-0.lb", "new.npz", "--out", "said", "--quiet")
    assert len(rows_of(tmp_path / "said" / "predictions.csv")) == 2


def test_a_failed_method_is_said_and_the_others_are_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(
        ["compare", "--methods", "layers:globs=nothing", "deterministic", "--out", str(tmp_path), *QUICK, "--json"]
    )
    result = json.loads(capsys.readouterr().out)
    assert code == 1
    assert "matched none" in result["methods"][0]["error"]
    assert len(result["methods"][1]["runs"]) == 1
    assert (tmp_path / "report.html").is_file()
