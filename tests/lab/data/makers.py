"""Small files to read."""

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("cat", "dog", "owl")


def picture(path: Path, seed: int = 0, size: tuple[int, int] = (10, 12), mode: str = "RGB", bright: int = 0) -> Path:
    """An image file of noise, ``bright`` or more in every pixel."""
    path.parent.mkdir(parents=True, exist_ok=True)
    bands = len(Image.new(mode, (1, 1)).getbands())
    shape = size if bands == 1 else (*size, bands)
    Image.fromarray(np.random.default_rng(seed).integers(bright, 256, shape, dtype=np.uint8)).save(path)
    return path


def class_tree(top: Path, counts: tuple[int, ...] = (20, 20, 20), **options) -> Path:
    """A folder for each class; the class can be seen from the brightness."""
    for label, (name, count) in enumerate(zip(CLASSES, counts, strict=False)):
        for index in range(count):
            picture(top / name / f"{index}.png", seed=1000 * label + index, bright=80 * label, **options)
    return top


def mask(path: Path, values: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values.astype(np.uint8)).save(path)
    return path


def mask_tree(top: Path, count: int = 20, yes: int = 255, ending: str = "") -> Path:
    """images/ and masks/: the mask is the left part of the image, which is bright."""
    for index in range(count):
        pixels = np.random.default_rng(index).integers(0, 100, (10, 12), dtype=np.uint8)
        labels = np.zeros((10, 12))
        labels[:, : 3 + index % 4] = yes
        pixels[labels > 0] += 100
        mask(top / "images" / f"i{index}.png", pixels)
        mask(top / "masks" / f"i{index}{ending}.png", labels)
    return top


def csv_file(path: Path, header: str, rows: list[str]) -> Path:
    path.write_text("\n".join([header, *rows]) + "\n")
    return path
