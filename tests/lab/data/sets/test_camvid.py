from pathlib import Path

import numpy as np
import pytest
import torch

from leanbayes.errors import InputError
from leanbayes.lab.data import load_data
from tests.lab.data.makers import mask, picture


def camvid(top: Path, void: int = 11) -> Path:
    for part, count in (("train", 6), ("val", 2), ("test", 3)):
        for index in range(count):
            picture(top / "CamVid" / part / f"{index}.png", index, size=(12, 16))
            labels = np.arange(12 * 16).reshape(12, 16) % 12
            labels[labels == 11] = void
            mask(top / "CamVid" / f"{part}annot" / f"{index}.png", labels)
    return top


def test_camvid_has_eleven_classes_and_void_pixels_do_not_count(tmp_path: Path) -> None:
    source = load_data("camvid", camvid(tmp_path))
    assert [len(part) for part in (source.train, source.validation, source.test)] == [6, 2, 3]
    assert len(source.preparation.classes) == 11
    assert source.preparation.classes[8] == "car"
    task = source.task()
    logits = torch.randn(1, 11, 12, 16)
    y = source.train[0][1]
    moved = logits + 9 * (y == 11)[None, None] * torch.randn(1, 11, 1, 1)
    assert torch.equal(task.likelihood.nll(logits, y[None]), task.likelihood.nll(moved, y[None]))


def test_camvid_with_other_labels(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"classes 0 to 10, got .*12"):
        load_data("camvid", camvid(tmp_path, void=12))
