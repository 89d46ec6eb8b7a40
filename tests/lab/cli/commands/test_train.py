"""``leanbayes train`` from the shell: what it leaves behind, and what it refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.lab.cli.shell import QUICK, complaint, picture, rows_of, run, shell


def test_a_model_of_the_users_own(halves: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(halves)
    (halves / "mine.py").write_text(
        "from torch import nn\n\n\ndef net(in_channels, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * 144, classes))\n"
    )
    run("train", "--data", "halves", "--model", "mine:net", "--recipe", "vi", "--out", "run", *QUICK)
    run("predict", "run/model.lb", "halves/left", "--model", "mine:net", "--out", "said", "--quiet")
    assert len(rows_of(halves / "said" / "predictions.csv")) == 24


def test_bad_folders(halves: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(halves)
    train = ["train", "--data", "halves", *QUICK]
    broken = halves / "halves" / "left" / "3.png"
    good = broken.read_bytes()
    broken.write_bytes(good[: len(good) // 2])
    assert "3.png" in shell(*train, folder=halves, code=2)
    broken.write_bytes(good)
    (halves / "halves" / "empty").mkdir()
    assert "empty" in complaint(capsys, *train)
    (halves / "halves" / "empty").rmdir()
    (halves / "nothing").mkdir()
    assert "nothing" in complaint(capsys, "train", "--data", "nothing")
    (halves / "halves" / "train").mkdir()
    (halves / "halves" / "test").mkdir()
    for name in ("left", "right"):
        (halves / "halves" / name).rename(halves / "halves" / "train" / name)
    picture(halves / "halves" / "test" / "upside" / "1.png", "left", 0)
    assert "upside" in complaint(capsys, *train)


def test_a_mask_of_the_wrong_size(
    squares: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(squares)
    Image.new("L", (9, 16)).save(squares / "masks" / "05.png")
    assert "05.png" in complaint(capsys, "train", "--data", "images", "--masks", "masks", *QUICK)


@pytest.mark.slow  # that two processes are one is tested with `fit` itself
def test_the_same_command_on_two_processes(halves: Path) -> None:
    """Under accelerate's launcher, which takes gloo on the CPU; only the first process writes."""
    launch = "accelerate.commands.launch --multi_gpu --num_processes 2 --num_machines 1"
    launch += " --mixed_precision no --dynamo_backend no -m leanbayes.lab.cli"
    command = ["train", "--data", "halves", "--recipe", "partial:rate=0.1", "--out", "run", *QUICK, "--json"]
    done = subprocess.run(
        [sys.executable, "-m", *launch.split(), *command],
        cwd=halves,
        capture_output=True,
        text=True,
        timeout=170,
        env=os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert json.loads(line)["metrics"] == json.loads((halves / "run" / "scores.json").read_text())["metrics"]
    shell("predict", "run/model.lb", "halves/left", "--out", "said", "--quiet", folder=halves)
