"""LIDC-IDRI (Armato et al. 2011): patches of CT scans of lungs in which four radiologists have marked nodules."""

from pathlib import Path

import numpy as np
import torch

from leanbayes.errors import FileError
from leanbayes.lab.data.arrays import Array, load_npz
from leanbayes.lab.data.named import DataSet, Origin
from leanbayes.lab.data.rated import from_raters
from leanbayes.lab.data.source import Source

__all__ = ["lidc", "read_lidc"]

_FILE = "lidc_128x128_4raters.npz"
_ORIGIN = Origin("LIDC-IDRI", "https://www.cancerimagingarchive.net/collection/lidc-idri (as one .npz, see lidc)")


def lidc(folder: Path | str | None = None, seed: int = 0, *, fold: int = 0) -> Source:
    """Read LIDC-IDRI from ``LIDC/lidc_128x128_4raters.npz``.

    The file holds ``images`` (N, H, W) in bytes, ``masks`` (N, raters, H, W) of 0 and 1, and ``patient`` (N). The last
    axis of the masks may be packed by `numpy.packbits`. The pickled file that many people share is not read, because
    reading it could run code.

    Args:
        folder: the data directory, by default `data_dir()`.
        seed: decides which patients are in which fold.
        fold: which of four folds is the test set (Abboud et al. 2024, section 3.1).
    """
    path, images, masks, patients = read_lidc(folder)
    return from_raters(
        path,
        torch.from_numpy(images),
        torch.from_numpy(masks),
        patients.tolist(),
        ("background", "nodule"),
        seed=seed,
        fold=fold,
    )


def read_lidc(folder: Path | str | None) -> tuple[Path, Array, Array, Array]:
    """Return the path of the file, its images, its masks (N, raters, H, W) and the patient of each image."""
    path = _ORIGIN.find(folder, f"LIDC/{_FILE}", _FILE)
    arrays = load_npz(path)
    if not {"images", "masks", "patient"} <= arrays.keys():
        raise FileError(f"{path} should hold images, masks and patient, got {sorted(arrays)}; save these arrays")
    images, masks, patients = (arrays[name] for name in ("images", "masks", "patient"))
    if images.dtype != np.uint8 or images.ndim != 3 or not images.size or masks.dtype != np.uint8 or masks.ndim != 4:
        raise FileError(
            f"{path} should hold bytes, images (N, H, W) and masks (N, raters, H, W), "
            f"got {images.dtype} {images.shape} and {masks.dtype} {masks.shape}"
        )
    return path, images, _unpacked(masks, images.shape[2]), patients


def _unpacked(masks: Array, width: int) -> Array:
    packed = masks.shape[3] == -(-width // 8) != width
    return np.unpackbits(masks, axis=3, count=width) if packed else masks


SETS = (DataSet("lidc", lidc, _ORIGIN),)
