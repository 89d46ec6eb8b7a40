"""``leanbayes train`` from the shell: what it leaves behind, and what it refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from leanbayes.lab.processes import only_user_of
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


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).normal(size=(90, 3))
    np.savez(tmp_path / "data.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
    return tmp_path


TRAIN = ["train", "--data", "data.npz", "--recipe", "deterministic", "--out", "run", *QUICK]


def test_another_model_is_not_overwritten(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A training into a folder with another model replaced that model without a word."""
    run(*TRAIN)
    before = load_file(rows / "run" / "model.lb")
    run(*TRAIN)  # the same training may be repeated
    after = load_file(rows / "run" / "model.lb")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    model = (rows / "run" / "model.lb").read_bytes()
    for other in (["--recipe", "vi"], ["--seed", "1"], ["--epochs", "5"], ["--lr", "0.1"], ["--model", "lenet300"]):
        assert "another folder, or --overwrite" in complaint(capsys, *TRAIN, *other)
    x = np.random.default_rng(1).normal(size=(90, 3))
    np.savez(rows / "data.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
    assert "another folder, or --overwrite" in complaint(capsys, *TRAIN)
    assert (rows / "run" / "model.lb").read_bytes() == model
    run(*TRAIN, "--overwrite")
    assert (rows / "run" / "model.lb").read_bytes() != model
    (rows / "run" / "model.lb").write_text("somebody's own file")
    assert "another folder, or --overwrite" in complaint(capsys, *TRAIN)
    assert {path.name for path in (rows / "run").iterdir()} == {"cases.csv", "model.lb", "scores.json"}


def test_checkpoints_of_another_training_are_not_used(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A training continued from the checkpoints of one with another recipe or learning rate that had been killed."""
    folder = rows / "run" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "training.json").write_text('{"recipe": "another"}')
    assert "checkpoints of another training" in complaint(capsys, *TRAIN)
    assert folder.is_dir()
    run(*TRAIN, "--overwrite")
    assert not folder.exists()


def test_what_a_disturbed_training_left_is_swept(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The remains of another machine, or under a process number that is used again, stayed for ever."""
    parts = [rows / "run" / name / ".x.00000000-1-0123abcd.part" for name in (".", "checkpoints")]
    for part in parts:
        part.mkdir(parents=True)
    with only_user_of(rows / "run"):
        complaint(capsys, *TRAIN)
    assert all(part.exists() for part in parts)
    run(*TRAIN)
    assert {path.name for path in (rows / "run").iterdir()} == {"cases.csv", "model.lb", "scores.json"}


def test_one_training_at_a_time_has_a_folder(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (rows / "run").mkdir()
    with only_user_of(rows / "run"):
        assert "uses the folder run" in complaint(capsys, *TRAIN)
    run(*TRAIN)


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
        timeout=500,
        env=os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert json.loads(line)["metrics"] == json.loads((halves / "run" / "scores.json").read_text())["metrics"]
    shell("predict", "run/model.lb", "halves/left", "--out", "said", "--quiet", folder=halves)


@pytest.mark.parametrize(
    "recipe",
    [
        "vdp:order=taylor,rank=0,positions=independent,kernels=exact,likelihood=moment",
        "partial:rate=0.2,score=squared,rho_mean=-4,rho_std=0.2,kl_per=parameter",
        "vi:last_layer_samples=3,temperature=0.5,draws=2",
    ],
)
def test_every_setting_of_the_papers_can_be_trained_from_the_shell(rows: Path, recipe: str) -> None:
    """Before, only a program could choose these settings, and some of them could not be trained with at all."""
    out = ["train", "--data", "data.npz", "--recipe", recipe, "--out", "run", "--class-weights", "balanced", *QUICK]
    run(*out)
    assert (rows / "run" / "model.lb").is_file()
    run("predict", "run/model.lb", "data.npz", "--out", "said", "--quiet")
    numbers = [float(row["total"]) for row in rows_of(rows / "said" / "predictions.csv")]
    assert len(numbers) == 90
    assert all(0 <= number < 1 for number in numbers)
