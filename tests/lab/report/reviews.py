"""Review pages of made-up cases: volumes whose doubt and lesions are known, and pictures in colour."""

import math
from pathlib import Path

import numpy as np

from leanbayes.lab.report.review import Review, ReviewCase
from leanbayes.lab.slices import View

MARKUP = "<img src=x onerror=alert(1)>&amp;</script><b>bold</b>"
CLASSES = ("background", "lesion", "<i>core</i>")
SIZE = (24, 20, 10)  # right, front, up
SPACING = (1.0, 2.0, 3.0)


def volume(name: str, doubt: float, seed: int = 0, **more: object) -> ReviewCase:
    """A lesion whose largest slice is slice 6 of 10 from the feet, with a core in the patient's right."""
    random = np.random.default_rng(seed)
    x, y, z = np.indices(SIZE)
    far = np.hypot((x - 16) / 5, (y - 10) / 6) ** 2 + ((z - 6) / 3) ** 2
    labels = (far < 1).astype(np.int64) + (far < 0.15)
    total = doubt * np.exp(-np.abs(np.sqrt(far) - 1) * 4)
    scan = (random.normal(size=SIZE) * 20 + 120 * (far < 1)).astype(np.int16)[None]
    fields = {"doubts": {"total": float(total.mean()), "draw_disagreement": doubt}, "facts": [("Doubt", f"{doubt}")]}
    return ReviewCase(name, scan, labels, total, 0.1 * total, View.of(SIZE, SPACING), **fields | more)


def photograph(name: str, doubt: float) -> ReviewCase:
    y, x = np.mgrid[:60, :90]
    lesion = np.hypot(x - 40, y - 30) < 18
    image = np.stack([200 - 60 * lesion, 150 - 70 * lesion, 120 - 60 * lesion]).astype(np.uint8)
    total = doubt * np.exp(-np.abs(np.hypot(x - 40, y - 30) - 18) / 3)
    return ReviewCase(
        name, image, lesion.astype(np.int64), total, total / 2, View.of((60, 90), None), {"total": float(total.mean())}
    )


def volumes_page(folder: Path, count: int = 5) -> Path:
    """Cases whose doubt does not follow their order; the third name is markup."""
    review = Review(folder, CLASSES, math.log(3))
    doubts = [0.3, 0.9, 0.5, 0.1, 0.7]
    for number in range(count):
        name = MARKUP if number == 2 else f"P{number}_0.nii.gz"
        review.add(volume(name, doubts[number % 5] + number // 5, number))
    return review.write([("Command", f"leanbayes predict {MARKUP}")])


def photographs_page(folder: Path) -> Path:
    review = Review(folder, ("skin", "lesion"), math.log(2))
    for number, doubt in enumerate((0.2, 0.6)):
        review.add(photograph(f"{number}.png", doubt))
    return review.write()
