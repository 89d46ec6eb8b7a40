"""``leanbayes compare`` from the shell: after a kill, and when a method fails."""

import io
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from leanbayes.lab.cli import main, program
from leanbayes.lab.cli.commands.compare import COMMAND
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


def test_subgroups_of_a_table_have_their_coverage_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = np.random.default_rng(0)
    numbers = enumerate(source.normal(size=(400, 2)))
    rows = [f"{a:.3f},{b:.3f},{('north', 'south')[i % 2]},{int(a > 0)}" for i, (a, b) in numbers]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,clinic,y", *rows]))
    data = ["--data", str(tmp_path / "table.csv"), "--target", "y", "--subgroups", "clinic"]
    methods = ["--methods", "deterministic+conformal:level=0.7,per=group"]
    assert main(["compare", *data, *methods, "--out", str(tmp_path / "out"), *QUICK, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["task"]["subgroups"] == ["north", "south"]
    names = result["methods"][0]["runs"][0]["metrics"].keys()
    assert {"conformal_group_coverage/north", "conformal_group_coverage/south"} < names
    assert "Group coverage, north" in (tmp_path / "out" / "report.html").read_text()
    assert main(["compare", "--data", "breastmnist", "--subgroups", "x", "--out", str(tmp_path / "no")]) == 2
    assert "--subgroups is for data of your own" in capsys.readouterr().err


def test_masks_have_their_risk_over_patients_on_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(0).normal(size=(90, 8, 8)).astype(np.float32)
    whose = np.array([f"p{i // 2}" for i in range(90)])
    kind = np.array(["ab"[i % 2] for i in range(90)])
    np.savez(tmp_path / "s.npz", x=x, y=(x > 0.5).astype(np.int64), patient=whose, subgroup=kind)
    methods = ["--methods", "deterministic", "deterministic+conformal:level=0.6"]
    out = ["--out", str(tmp_path / "out"), *QUICK, "--json"]
    assert main(["compare", "--data", str(tmp_path / "s.npz"), *methods, *out]) == 0
    plain, conformal = (row["runs"][0]["metrics"] for row in json.loads(capsys.readouterr().out)["methods"])
    assert 0 < plain["marked_at_10"] <= 1
    assert conformal["conformal_risk/low"] <= conformal["conformal_risk"] <= conformal["conformal_risk/high"]
    assert {"conformal_marked", "conformal_group_risk/a", "conformal_group_risk/b"} < conformal.keys()
    page = (tmp_path / "out" / "report.html").read_text()
    assert '<section id="losses">' in page
    assert "ranked by the first column, Marked at 10 % missed" in page


def test_a_narrow_terminal_shows_whole_words_and_the_recommendation_last() -> None:
    metrics = {"accuracy": 0.9, "auc": 0.99, "nll": 0.1, "brier": 0.05, "ece": 0.012}
    cost = {"parameters": 61_706, "random": 617, "train_seconds": 61.5, "predict_seconds": 2.25}
    runs = [{"seed": seed, "metrics": metrics | {"nll": 0.1 + 0.01 * seed}, "cost": cost} for seed in range(3)]
    names = ("deterministic+temperature", "ensemble:members=3", "lean")
    record = {
        "methods": [{"name": name, "recipe": {}, "error": None, "runs": runs} for name in names],
        "recommendation": {"sentences": ["Take lean: its NLL is lower.", "To train, it costs 1.1 times."]},
        "report": "out/report.html",
    }
    console = Console(width=80, file=io.StringIO(), force_terminal=False)
    COMMAND.show(console, record)
    lines = console.file.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert "…" not in "".join(lines)
    for name in names:
        assert any(line.startswith(f"{name} ") and "0.110 ± 0.025" in line for line in lines)
    assert [line.strip() for line in lines[-2:]] == [
        "Take lean: its NLL is lower. To train, it costs 1.1 times.",
        "report: out/report.html",
    ]
    wide = Console(width=200, file=io.StringIO(), force_terminal=False)
    COMMAND.show(wide, record)
    head = wide.file.getvalue().splitlines()[0]
    assert all(title in head for title in ("Accuracy", "AUC", "NLL", "Brier", "ECE", "Parameters", "Random weights"))


def test_a_real_terminal_of_80_columns_is_not_overrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """The console of the program itself in a terminal: no line of the table or of the prose is longer than 80."""
    names = ("accuracy", "dice", "mean_iou", "nll", "brier", "ece", "boundary_ece", "lesion_sensitivity")
    cost = {"train_seconds": 4.386, "predict_seconds": 0.145, "parameters": 117_954}
    runs = [{"seed": 0, "metrics": dict.fromkeys(names, 0.871), "cost": cost}]
    sentence = "No significant gain: take the plain network (with temperature, which was not compared)."
    record = {
        "methods": [{"name": name, "recipe": {}, "error": None, "runs": runs} for name in ("deterministic", "dropout")],
        "recommendation": {"sentences": [sentence, sentence]},
        "report": f"{'long' * 22}/report.html",
    }
    monkeypatch.setenv("COLUMNS", "80")
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdout", terminal)
    COMMAND.show(program._console(), record)
    lines = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()).splitlines()]
    assert "Training" in "".join(lines)
    assert [line for line in lines if len(line) > 80] == [record["report"]]  # a path stays whole
    assert " ".join(lines).count(sentence) == 2  # lines end between words


def test_a_terminal_shows_coverage_and_ranks_by_the_size_at_equal_coverage() -> None:
    cost = {"train_seconds": 61.5, "predict_seconds": 2.25}
    shared = {"nll": 0.1, "accuracy": 0.9, "conformal_coverage": 0.912, "conformal_size": 1.3, "conformal_empty": 0.01}
    runs = {
        name: [{"seed": 0, "metrics": shared | {"size_at_90": size}, "cost": cost}]
        for name, size in (("ensemble+conformal", 1.25), ("lean+conformal", 1.125))
    }
    record = {
        "methods": [{"name": name, "recipe": {}, "error": None, "runs": of} for name, of in runs.items()],
        "report": "out/report.html",
    }
    console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system=None)
    COMMAND.show(console, record)
    lines = console.file.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert any(line.startswith("lean+conformal") and "0.912" in line for line in lines)
    words = " ".join(" ".join(lines).split())
    assert "the smallest first: lean+conformal (1.125), ensemble+conformal (1.250)." in words
