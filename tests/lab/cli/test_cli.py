"""The command from the shell, start to end: what it leaves behind, what it says, and its exit codes."""

import csv
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from leanbayes.lab.cli import main

QUICK = ["--epochs", "4", "--batch-size", "16", "--samples", "4", "--quiet"]


def shell(*arguments: str, folder: Path, code: int = 0) -> str:
    """Run the command in another process; its standard output, or its one line of complaint."""
    done = subprocess.run(
        [sys.executable, "-m", "leanbayes.lab.cli", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=170,
        env=os.environ | {"COLUMNS": "200"},
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    if code == 2:
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        return done.stderr
    return done.stdout


def run(*arguments: str) -> None:
    """The same in this process, which is quicker."""
    assert main(arguments) == 0


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that bad input gets."""
    capsys.readouterr()
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert len(said.err.strip().splitlines()) == 1, said.err
    assert said.out == ""
    return said.err


def picture(path: Path, bright: str, seed: int, size: int = 12) -> None:
    """Noise with a bright left or right half."""
    pixels = np.random.default_rng(seed).integers(0, 90, (size, size), dtype=np.uint8)
    half = slice(0, size // 2) if bright == "left" else slice(size // 2, size)
    pixels[:, half] += 120
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def halves(tmp_path: Path) -> Path:
    for name in ("left", "right"):
        for number in range(24):
            picture(tmp_path / "halves" / name / f"{number}.png", name, number)
    return tmp_path


@pytest.fixture
def squares(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    for number in range(16):
        pixels = generator.integers(0, 80, (16, 16), dtype=np.uint8)
        mask = np.zeros((16, 16), np.uint8)
        x, y = generator.integers(0, 10, 2)
        pixels[y : y + 6, x : x + 6] += 150
        mask[y : y + 6, x : x + 6] = 255
        for folder, array in (("images", pixels), ("masks", mask)):
            (tmp_path / folder).mkdir(exist_ok=True)
            Image.fromarray(array).save(tmp_path / folder / f"{number:02}.png")
    return tmp_path


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# ---------------------------------------------------------------- start to end, from the shell


def test_a_folder_of_images_is_learnt_and_predicted(halves: Path) -> None:
    said = shell(
        "train", "--data", "halves", "--recipe", "partial:rate=0.05", "--out", "run", *QUICK, "--epochs", "20",
        folder=halves,
    )  # fmt: skip
    assert "accuracy" in said
    scores = json.loads((halves / "run" / "scores.json").read_text())
    assert scores["metrics"]["accuracy"] > 0.8
    assert not (halves / "run" / "checkpoints").exists()
    for bright in ("left", "right"):
        picture(halves / "new" / f"{bright}.png", bright, 99)
    shell("predict", "run/model.lb", "new", "--out", "said", "--quiet", folder=halves)
    rows = rows_of(halves / "said" / "predictions.csv")
    assert [(row["name"], row["predicted"]) for row in rows] == [("left.png", "left"), ("right.png", "right")]
    for row in rows:
        assert float(row["p(left)"]) + float(row["p(right)"]) == pytest.approx(1, abs=1e-4)
        assert float(row["probability"]) == max(float(row["p(left)"]), float(row["p(right)"]))
        assert 0 <= float(row["epistemic"]) <= float(row["total"]) <= math.log(2) + 1e-6
        assert float(row["aleatoric"]) + float(row["epistemic"]) == pytest.approx(float(row["total"]), abs=1e-4)
        assert row["draws"] == "32"


def test_images_with_masks_give_maps(
    squares: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(squares)
    run("train", "--data", "images", "--masks", "masks", "--recipe", "layers", "--out", "run", *QUICK, "--epochs", "12")
    assert json.loads((squares / "run" / "scores.json").read_text())["metrics"]["dice"] > 0.5
    capsys.readouterr()
    run("predict", "run/model.lb", "images", "--out", "said", "--json")
    found = json.loads(capsys.readouterr().out)
    assert found == {"predictions": "said/predictions.csv", "inputs": 16}
    row = rows_of(squares / "said" / "predictions.csv")[3]
    assert row["name"] == "03.png"
    maps = {
        kind: np.asarray(Image.open(squares / "said" / f"03_{kind}.png")) for kind in ("classes", "total", "epistemic")
    }
    assert all(pixels.shape == (16, 16) for pixels in maps.values())
    assert set(np.unique(maps["classes"])) <= {0, 1}
    assert float(row["share(foreground)"]) == pytest.approx(maps["classes"].mean(), abs=1e-5)
    assert float(row["total"]) == pytest.approx(maps["total"].mean() / 255 * math.log(2), abs=0.5 / 255)
    assert (maps["epistemic"].astype(int) <= maps["total"].astype(int) + 1).all()


def test_arrays_and_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(120, 3))
    np.savez(tmp_path / "data.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
    np.savez(tmp_path / "new.npz", x=np.array([[3.0, 0, 0], [-3.0, 0, 0]]))
    run("train", "--data", "data.npz", "--recipe", "vi", "--out", "a", *QUICK, "--epochs", "30")
    run("predict", "a/model.lb", "new.npz", "--out", "a", "--samples", "auto", "--quiet")
    assert [row["predicted"] for row in rows_of(tmp_path / "a" / "predictions.csv")] == ["1", "0"]

    with (tmp_path / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["dose", "age", "outcome"])
        writer.writerows([a, b, 100 + 30 * a + generator.normal()] for a, b, _ in x)
    (tmp_path / "new.csv").write_text("age,dose\n0,1.5\n0,-1.5\n")
    run(
        "train", "--data", "table.csv", "--target", "outcome", "--recipe", "deterministic", "--out", "b", *QUICK,
        "--epochs", "60",
    )  # fmt: skip
    run("predict", "b/model.lb", "new.csv", "--out", "b", "--quiet")
    rows = rows_of(tmp_path / "b" / "predictions.csv")
    assert [float(row["mean"]) for row in rows] == [pytest.approx(145, abs=12), pytest.approx(55, abs=12)]
    assert all(0 < float(row["deviation"]) < 30 for row in rows)


def test_a_model_of_the_users_own(halves: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(halves)
    (halves / "mine.py").write_text(
        "from torch import nn\n\n\ndef net(in_channels, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * 144, classes))\n"
    )
    run("train", "--data", "halves", "--model", "mine:net", "--recipe", "vi", "--out", "run", *QUICK)
    run("predict", "run/model.lb", "halves/left", "--out", "said", "--quiet")
    assert len(rows_of(halves / "said" / "predictions.csv")) == 24


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
    found = json.loads(shell(*command, "--json", folder=tmp_path))
    assert found["methods"][0]["runs"] == [{key: first[key] for key in ("seed", "metrics", "cost")}]
    assert [row["name"] for row in found["methods"]] == ["deterministic", "partial"]
    assert found["command"].startswith("leanbayes compare --methods deterministic partial")
    page = (tmp_path / "run" / "report.html").read_text()
    assert "partial" in page
    (tmp_path / "run" / "report.html").unlink()
    run("report", "run", "--out", "page.html")
    assert (tmp_path / "page.html").read_text().startswith("<!")
    digits = np.zeros((2, 1, 8, 8), np.float32)
    np.savez(tmp_path / "new.npz", x=digits)
    run("predict", "run/models/partial-0.lb", "new.npz", "--out", "said", "--quiet")
    assert len(rows_of(tmp_path / "said" / "predictions.csv")) == 2


# ---------------------------------------------------------------- options


def test_a_file_of_options_and_what_is_typed_over_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"methods": ["deterministic", {"partial": {"rate": 0.02}}], "epochs": 2, "samples": 3, "batch-size": 64}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    code = main(
        ["compare", "--config", str(tmp_path / "c.yaml"), "--epochs", "3", "--out", str(tmp_path / "o"), "--json"]
    )
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert found["budget"]["epochs"] == 3
    assert found["samples"] == 3
    assert found["methods"][1]["name"] == "partial:rate=0.02"
    assert found["methods"][1]["recipe"]["rate"] == 0.02


def test_a_failed_method_is_said_and_the_others_are_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(
        ["compare", "--methods", "layers:globs=nothing", "deterministic", "--out", str(tmp_path), *QUICK, "--json"]
    )
    found = json.loads(capsys.readouterr().out)
    assert code == 1
    assert "matched none" in found["methods"][0]["error"]
    assert len(found["methods"][1]["runs"]) == 1
    assert (tmp_path / "report.html").is_file()


@pytest.mark.parametrize("command", [[], ["compare"], ["train"], ["tune"], ["predict"], ["report"]])
def test_help_is_complete(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([*command, "--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    if command in (["compare"], ["train"], ["tune"]):
        for word in ("--data", "--epochs", "--model", "--out", "partial", "rate=0.01", "swag", "--config", "--json"):
            assert word in said


# ---------------------------------------------------------------- bad input


BAD: dict[str, tuple[list[str], str]] = {
    "no command": ([], "COMMAND"),
    "an unknown command": (["fly"], "fly"),
    "an unknown option": (["compare", "--color", "red"], "--color"),
    "an unknown method": (["compare", "--methods", "magic"], "unknown recipe 'magic'"),
    "a method twice": (["compare", "--methods", "vi", "vi"], "twice"),
    "no number": (["train", "--epochs", "many"], "--epochs must be"),
    "no epochs": (["train", "--epochs", "0"], "epochs must be at least 1"),
    "no data": (["train", "--data", "nowhere"], "nowhere"),
    "an unknown model": (["train", "--model", "huge"], "unknown model 'huge'"),
    "a module that is not there": (["train", "--model", "not_there:net"], "not_there"),
    "no such file": (["predict", "none.lb", "x.npz"], "none.lb"),
    "no such folder": (["report", "nowhere"], "nowhere"),
    "no such config": (["train", "--config", "nowhere.yaml"], "nowhere.yaml"),
    "samples": (["predict", "none.lb", "x.npz", "--samples", "0"], "--samples"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_two(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, expected = BAD[name]
    assert expected in complaint(capsys, *arguments)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[1, 2]", "names and values"),
        ("epochs: [", "no YAML"),
        ("epoch: 3", "unknown option"),
        ("methods: [{a: 1, b: 2}]", "one name"),
    ],
)
def test_bad_files_of_options(text: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.yaml").write_text(text)
    assert expected in complaint(capsys, "compare", "--config", str(tmp_path / "c.yaml"))


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


def test_a_saved_model_refuses_what_it_was_not_trained_for(
    halves: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(halves)
    run("train", "--data", "halves", "--recipe", "deterministic", "--out", "run", *QUICK)
    picture(halves / "new" / "big.png", "left", 0, size=30)
    assert "big.png" in complaint(capsys, "predict", "run/model.lb", "new")
    (halves / "new" / "big.png").write_bytes(b"no image")
    assert "big.png" in complaint(capsys, "predict", "run/model.lb", "new")
    model = halves / "run" / "model.lb"
    model.write_bytes(model.read_bytes()[:-100])
    assert "cut short" in complaint(capsys, "predict", "run/model.lb", "new")


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
