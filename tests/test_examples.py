"""The examples run, from the shell, as the README says, and the README's own lines print what it shows."""

import csv
import json
import re
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from leanbayes.lab.cli import main

ROOT = Path(__file__).resolve().parent.parent


def test_the_digits_demo_prints_its_table_and_draws_its_figure(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "digits.py"), "--out", str(tmp_path), "--epochs", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for word in ("accuracy", "NLL", "Brier", "ECE", "rotated", "unseen", "deterministic", "partial, 360 random"):
        assert word in done.stdout
    assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG")


def test_the_lines_of_the_readme_print_what_it_shows() -> None:
    text = (ROOT / "README.md").read_text()
    lines, shown = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL)[0]
    assert len([line for line in lines.splitlines() if line]) == 10
    printed = StringIO()
    with redirect_stdout(printed):
        exec(compile(lines, "README.md", "exec"), {})
    numbers = [[float(word) for word in output.split()] for output in (printed.getvalue(), shown)]
    assert numbers[0] == pytest.approx(numbers[1], abs=0.02)  # another machine rounds otherwise, at each of 500 steps


def test_the_readme_is_one_screen() -> None:
    """A sentence, a picture, `pip install`, ten lines with their output, one table, and links to the site."""
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 60
    assert len(re.findall(r"^\|---", text, re.MULTILINE)) == 1


@pytest.mark.slow
def test_the_lesions_demo_doubts_more_where_it_errs_and_draws_the_picture_of_the_site(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "lesions.py"), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ScalesDidNotMove" not in done.stderr
    agree, elsewhere = (float(line.split()[-2]) for line in done.stdout.splitlines() if line.startswith("mean"))
    assert elsewhere > 2 * agree
    assert (tmp_path / "lesions.png").read_bytes().startswith(b"\x89PNG")


def test_lidc_from_folders_is_learnt_and_predicted_from_the_shell(tmp_path: Path) -> None:
    """The whole way of examples/lidc.py, on a small file of the same layout with packed masks."""
    random = np.random.default_rng(0)
    images = random.integers(0, 100, (30, 16, 16), dtype=np.uint8)
    masks = np.zeros((30, 4, 16, 16), dtype=np.uint8)
    for row in range(30):
        y, x = random.integers(2, 8, 2)
        for rater in range(4):
            masks[row, rater, y : y + 5 + rater % 2, x : x + 5] = 1
        images[row, y : y + 5, x : x + 5] += 120
    masks[3, 1] = 0  # a radiologist who sees no nodule
    patients = np.arange(30) // 2 + 1000
    (tmp_path / "data" / "LIDC").mkdir(parents=True)
    file = tmp_path / "data" / "LIDC" / "lidc_128x128_4raters.npz"
    np.savez(file, images=images, masks=np.packbits(masks, axis=3), patient=patients)
    command = [sys.executable, str(ROOT / "examples" / "lidc.py"), "--data-dir", "data", "--out", "lidc"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "30 patches in lidc\n"), done.stderr
    lidc, run = tmp_path / "lidc", tmp_path / "run"
    assert np.array_equal(np.asarray(Image.open(lidc / "rater2" / "patch00003.png")), masks[3, 1])
    raters = [str(lidc / f"rater{number}") for number in range(1, 5)]
    words = ["train", "--data", str(lidc / "images"), "--raters", *raters, "--groups", str(lidc / "patients.csv")]
    words += ["--recipe", "partial", "--dice", "0.5", "--epochs", "4", "--samples", "4", "--quiet", "--out", str(run)]
    assert main(words) == 0
    with (run / "cases.csv").open(newline="") as table:
        cases = list(csv.DictReader(table))
    for case in cases:
        assert case["patient"] == str(patients[int(case["name"][5:10])])
        assert case["raters"] == "4"
        assert float(case["ged"]) >= 0
        assert 0 <= float(case["boundary_ece"]) <= 1
        assert float(case["lesions"]) == 1
    scores = json.loads((run / "scores.json").read_text())
    assert scores["budget"]["dice"] == 0.5
    assert scores["by_case"]["over"] == "patients"
    assert scores["by_case"]["means"]["dice"]["n"] == len({case["patient"] for case in cases})
    maps = str(tmp_path / "maps")
    assert main(["predict", str(run / "model.lb"), str(lidc / "images"), "--out", maps, "--quiet"]) == 0
    assert np.asarray(Image.open(tmp_path / "maps" / "patch00000_classes.png")).shape == (16, 16)
