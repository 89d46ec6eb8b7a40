"""The six tutorials: their code runs, prints what the pages show, and draws the pictures that the pages show.

Every page ends a training with random weights, so its numbers have two digits at most, and the last one may differ by
two on another machine. Whether the Bayesian network is better than the plain one is part of what a page prints.
"""

import re
from pathlib import Path

import pytest

from tests.integrations.pages import ROOT, blocks_of, run_page

FOLDER = ROOT / "docs" / "tutorials"
PICTURES = ROOT / "docs" / "pictures" / "tutorials"
NAMES = ("classify", "segment", "regress", "one_pass", "sparse", "lora")
NEEDS = {"lora": ("peft", "transformers")}
SMALL = 64_000


def test_there_are_six_tutorials_and_all_are_listed() -> None:
    pages = {path.stem for path in FOLDER.glob("*.md")} - {"index"}
    assert pages == set(NAMES)
    listed = re.findall(r"\]\((\w+)\.md\)", (FOLDER / "index.md").read_text())
    assert [name for name in listed if name in NAMES] == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_code_of_a_tutorial_prints_what_the_page_shows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("sklearn", "matplotlib", *NEEDS.get(name, ())):
        pytest.importorskip(package)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    run_page(f"docs/tutorials/{name}.md", tmp_path, last_digit=2)
    assert [path.name for path in tmp_path.glob("*.png")] == [f"{name}.png"]


@pytest.mark.parametrize("name", NAMES)
def test_a_tutorial_shows_its_output_and_a_small_picture(name: str) -> None:
    text = (FOLDER / f"{name}.md").read_text()
    blocks = blocks_of(text)
    assert sum(block.output is not None for block in blocks) >= 3
    assert 40 <= sum(len(re.findall(r"^.*\S.*$", block.code, re.MULTILINE)) for block in blocks) <= 110
    assert f"(../pictures/tutorials/{name}.png)" in text
    picture = (PICTURES / f"{name}.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < SMALL
