"""The page on medical images: its lines of shell lead from files to a review page, here with small data and budgets."""

import csv
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from leanbayes.lab.cli import main
from leanbayes.lab.data import lidc_files
from leanbayes.lab.data.sets.volumes import write_volumes

PAGE = Path(__file__).resolve().parents[2] / "docs" / "medical.md"


def lines_of(title: str) -> list[list[list[str]]]:
    """The commands of each block of shell below a title, word by word."""
    (text,) = re.findall(rf"^## {title}\n(.*?)^## ", PAGE.read_text(), re.S | re.M)
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.S | re.M)
    return [[shlex.split(line) for line in block.replace("\\\n", " ").strip().splitlines()] for block in blocks]


def small(words: list[str]) -> list[str]:
    """The same command with two epochs, two draws and one method."""
    words = [word for word in words if word != "deterministic"]
    less = ["--samples", "2", "--quiet"] if words[0] == "predict" else ["--epochs", "2", "--samples", "2", "--quiet"]
    return words + less  # the last value of an option counts


def cases_of(page: Path) -> list[dict]:
    (text,) = re.findall(r'<script type="application/json" id="cases">(.*?)</script>', page.read_text(), re.S)
    return json.loads(text)


def run_block(commands: list[list[str]]) -> None:
    assert len(commands) <= 10
    for program, *words in commands:
        assert program == "leanbayes"
        assert main(small(words)) == 0


def test_from_generated_scans_to_a_review_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make, *commands = lines_of("From files to a review page")[0]
    assert make == ["python", "-m", "leanbayes.lab.data.sets.volumes", "scans"]
    write_volumes(Path("scans"), patients=4, size=16)
    run_block(commands)
    names = {file.name for file in Path("scans/images").iterdir()}
    assert {case["name"] for case in cases_of(Path("maps/review.html"))} == names
    assert {f"{name.removesuffix('.nii.gz')}_classes.nii.gz" for name in names} <= {
        f.name for f in Path("maps").iterdir()
    }


def test_from_lidc_to_a_review_page_and_a_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file of the layout of LIDC with random nodules."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    images = random.integers(0, 90, (10, 48, 48), dtype=np.uint8)
    masks = np.zeros((10, 4, 48, 48), np.uint8)
    for number in range(10):
        y, x = random.integers(10, 30, 2)
        images[number, y : y + 8, x : x + 8] += 120
        for rater in range(4 if number % 3 else 3):
            masks[number, rater, y : y + 8 - rater, x : x + 8] = 1
    Path("data/LIDC").mkdir(parents=True)
    patients = np.array([f"{number}" for number in range(10)])
    np.savez("data/LIDC/lidc_128x128_4raters.npz", images=images, masks=np.packbits(masks, axis=3), patient=patients)
    make, *commands = lines_of("From files to a review page")[1]
    assert make[:3] == ["python", "-m", "leanbayes.lab.data.lidc_files"]
    assert lidc_files.main(make[3:]) == 0
    commands[0] += ["--dice", "0.5"]
    run_block(commands)
    assert len(cases_of(Path("lidc-maps/review.html"))) == 10
    page = Path("lidc-compare/report.html").read_text()
    assert "Worst case: P" in page
    assert "other raters" in page
    make, *commands = lines_of("From files to a review page")[2]  # the same from one file of arrays
    assert lidc_files.main(make[3:]) == 0
    run_block(commands)
    assert len(cases_of(Path("npz-maps/review.html"))) == 10
    with Path("lidc-run/cases.csv").open(newline="") as table:
        cases = list(csv.DictReader(table))
    for case in cases:
        assert case["name"].startswith(f"P{case['patient']}_".replace("PP", "P"))
        assert case["raters"] == "4"
        assert float(case["ged"]) >= 0
        assert 0 <= float(case["boundary_ece"]) <= 1
    scores = json.loads(Path("lidc-run/scores.json").read_text())
    assert scores["budget"]["dice"] == 0.5
    assert scores["by_case"]["over"] == "patients"
    assert scores["by_case"]["means"]["dice"]["n"] == len({case["patient"] for case in cases})
