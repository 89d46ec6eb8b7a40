"""LIDC-IDRI as files: images of each patient and a folder of masks for each radiologist, or one .npz file.

``python -m leanbayes.lab.data.lidc_files DATA FOLDER --patients 80`` writes those of 80 patients, to try the way from
files to a review page. ``DATA lidc.npz`` writes the same as arrays ``x``, ``y`` and ``patient``.
"""

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from leanbayes._files import write_bytes
from leanbayes.errors import FileError, InputError
from leanbayes.lab.data.arrays import Array
from leanbayes.lab.data.sets.lidc import read_lidc

__all__ = ["main", "write_lidc"]


def write_lidc(
    data: Path | str | None,
    out: Path,
    *,
    patients: int | None = None,
    skip: int = 0,
    slices: int = 1,
    side: int = 48,
) -> list[Path]:
    """Write the slices of each patient that the radiologists marked most.

    Args:
        data: the data directory, by default `data_dir()`.
        out: the folder that receives folders of PNG files, or an .npz file.
        patients: how many patients are written, by default all.
        skip: how many patients are left out before these, so that two calls write different patients.
        slices: how many slices of each patient are written at most.
        side: the side of the square in the middle of a patch that is kept. Nodules lie in the middle.

    Returns:
        The folders: that of the images, and that of each radiologist; or the .npz file. Who marked nothing has an empty
        mask.
    """
    _, images, masks, whose = read_lidc(data)
    wanted = np.unique(whose)[skip:][:patients]
    if slices < 1 or skip < 0 or not len(wanted) or not 8 <= side <= min(images.shape[1:]):
        raise InputError(
            f"patients and slices must be at least 1, skip less than the {len(np.unique(whose))} patients, and side "
            f"from 8 to {min(images.shape[1:])}, got {patients}, {slices}, {skip} and {side}"
        )
    top, left = ((length - side) // 2 for length in images.shape[1:])
    middle = (..., slice(top, top + side), slice(left, left + side))
    marked = masks[middle].sum((1, 2, 3))
    rows: list[int] = []
    for patient in wanted:
        of_patient = np.flatnonzero(whose == patient)
        rows += sorted(of_patient[np.argsort(-marked[of_patient], kind="stable")][:slices].tolist())
    images, masks = np.ascontiguousarray(images[rows][middle]), np.ascontiguousarray(masks[rows][middle])
    if out.suffix == ".npz":
        file = io.BytesIO()
        np.savez_compressed(file, x=images, y=masks, patient=whose[rows])
        write_bytes(out, file.getvalue())
        return [out]
    return _write_folders(out, images, masks, [f"P{whose[row]}_{row}.png" for row in rows])


def _write_folders(out: Path, images: Array, masks: Array, names: Sequence[str]) -> list[Path]:
    folders = [out / "images", *(out / f"rater{number + 1}" for number in range(masks.shape[1]))]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    for name, image, of_raters in zip(names, images, masks, strict=True):
        for folder, plane in zip(folders, (image, *(255 * of_raters)), strict=True):
            file = io.BytesIO()
            Image.fromarray(plane).save(file, format="PNG")
            write_bytes(folder / name, file.getvalue())
    return folders


def main(arguments: Sequence[str] | None = None) -> int:
    """Write files to the place that the command line names; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m leanbayes.lab.data.lidc_files",
        description="Write LIDC-IDRI as images and masks of four raters.",
    )
    parser.add_argument("data", metavar="DATA", help="the data directory, which holds LIDC/lidc_128x128_4raters.npz")
    parser.add_argument("out", metavar="OUT", type=Path, help="a folder, or a file that ends in .npz")
    parser.add_argument("--patients", type=int, help="how many patients are written, by default all")
    parser.add_argument("--skip", type=int, default=0, help="how many patients are left out before these")
    parser.add_argument("--slices", type=int, default=1, help="how many slices of each patient are written at most")
    parser.add_argument("--side", type=int, default=48, help="the side of the square in the middle that is kept")
    words = parser.parse_args(arguments)
    try:
        write_lidc(
            words.data, words.out, patients=words.patients, skip=words.skip, slices=words.slices, side=words.side
        )
    except (FileError, InputError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
