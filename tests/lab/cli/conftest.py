"""Small data on disk."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.lab.cli.shell import picture


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
