"""LIDC-IDRI (Armato et al. 2011): patches of CT scans of lungs in which four radiologists have marked nodules.

``python -m leanbayes.lab.data.sets.lidc DATA FOLDER`` writes a slice of each patient as files, with a folder for each
radiologist, to try the way from files to a review page.
"""

import io
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from leanbayes._files import write_bytes
from leanbayes.errors import FileError, InputError
from leanbayes.lab.data.arrays import Array, load_npz
from leanbayes.lab.data.named import DataSet, Origin
from leanbayes.lab.data.rated import from_raters
from leanbayes.lab.data.source import Source

__all__ = ["lidc", "write_lidc"]

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
    path, images, masks, patients = _read(folder)
    return from_raters(
        path,
        torch.from_numpy(images),
        torch.from_numpy(masks),
        patients.tolist(),
        ("background", "nodule"),
        seed=seed,
        fold=fold,
    )


def write_lidc(data: Path | str | None, folder: Path, *, slices: int = 1, side: int = 64) -> list[Path]:
    """Write the slices of each patient that the radiologists marked most, as PNG files.

    Args:
        data: the data directory, by default `data_dir()`.
        folder: where the folders go.
        slices: how many slices of each patient are written at most.
        side: the side of the square in the middle of a patch that is kept. Nodules lie in the middle.

    Returns:
        The folders: that of the images, and that of each radiologist. Who marked nothing has an empty mask.
    """
    _, images, masks, patients = _read(data)
    if slices < 1 or not 8 <= side <= min(images.shape[1:]):
        raise InputError(f"slices must be at least 1 and side from 8 to {min(images.shape[1:])}, got {slices}, {side}")
    top, left = ((length - side) // 2 for length in images.shape[1:])
    cut = (slice(top, top + side), slice(left, left + side))
    folders = [folder / "images", *(folder / f"rater{number + 1}" for number in range(masks.shape[1]))]
    for each in folders:
        each.mkdir(parents=True, exist_ok=True)
    marked = masks[(..., *cut)].sum((1, 2, 3))
    for patient in np.unique(patients):
        rows = np.flatnonzero(patients == patient)
        for row in sorted(rows[np.argsort(-marked[rows], kind="stable")][:slices].tolist()):
            name = f"P{patient}_{row}.png"
            for each, plane in zip(folders, (images[row], *(255 * masks[row])), strict=True):
                file = io.BytesIO()
                Image.fromarray(np.ascontiguousarray(plane[cut])).save(file, format="PNG")
                write_bytes(each / name, file.getvalue())
    return folders


def _read(folder: Path | str | None) -> tuple[Path, Array, Array, Array]:
    """The path, the images, the masks (N, raters, H, W) and the patients."""
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Write files to the folder that the command line names; return the exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if len(words) != 2 or words[0].startswith("-"):
        sys.stderr.write("usage: python -m leanbayes.lab.data.sets.lidc DATA FOLDER\n")
        return 2
    try:
        write_lidc(words[0], Path(words[1]))
    except (FileError, InputError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


SETS = (DataSet("lidc", lidc, _ORIGIN),)

if __name__ == "__main__":
    sys.exit(main())
