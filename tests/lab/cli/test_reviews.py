"""What the review page gets of a prediction: numbers, outlines, and the image as its file has it."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from leanbayes.errors import InputError
from leanbayes.lab.cli.predictions import Predictions
from leanbayes.lab.cli.reviews import Reviewer
from leanbayes.lab.data import Preparation
from leanbayes.lab.data.new_cases import NewCase
from leanbayes.prediction import Prediction

PLAN = Preparation("pixels", (0.0,), (1.0,), ("ground", "lesion"), size=(8, 6))


def prediction() -> Prediction:
    inside = torch.zeros(8, 6)
    inside[2:5, 1:4] = 0.9
    total = torch.full((1, 8, 6), 0.2)
    return Prediction(
        mean=torch.stack([1 - inside, inside])[None],
        total=total,
        aleatoric=total / 2,
        epistemic=total / 2,
        standard_error=torch.zeros(1),
        draws=torch.tensor([1]),
    )


def reviewed(folder: Path, case: NewCase) -> dict:
    reviewer = Reviewer(folder, PLAN, torch.nn.Identity())
    reviewer.add(case, prediction(), Predictions(PLAN).add(case.name, prediction(), 0))
    page = reviewer.write({"command": "leanbayes predict", "seed": 3, "model_sha256": "ab" * 32, "leanbayes": "0"})
    text = page.read_text()
    assert "ab" * 32 in text
    (cases,) = re.findall(r'<script type="application/json" id="cases">(.*?)</script>', text, re.S)
    return json.loads(cases)[0]


def test_a_case_has_its_numbers_and_its_outline(tmp_path: Path) -> None:
    case = reviewed(tmp_path, NewCase("a.png", torch.zeros(1, 8, 6), (8, 6), read=lambda: torch.rand(1, 8, 6)))
    # one draw cannot disagree; of 9 pixels with p = 0.9 the Dice is expected to be 2 x 8.1 / (8.1 + 9)
    expected = {"expected_dice_loss": 1 - 16.2 / 17.1, "total": 0.2, "epistemic": 0.1}
    assert case["doubts"] == pytest.approx(expected, rel=1e-4)
    assert ["lesion (share)", "18.8%"] in case["facts"]
    assert case["paths"][0]["slices"] == ["M1 2h3M1 5h3M1 2v3M4 2v3"]


def test_a_case_without_an_image_of_its_own_shows_what_the_model_takes(tmp_path: Path) -> None:
    assert reviewed(tmp_path, NewCase("0", torch.rand(1, 8, 6)))["width"] == 6


@pytest.mark.parametrize("kind", ["classes", "labels"])
def test_other_kinds_are_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(InputError, match=f"this model predicts {kind}"):
        Reviewer(tmp_path, replace(PLAN, kind=kind), torch.nn.Identity())
    assert not list(tmp_path.iterdir())
