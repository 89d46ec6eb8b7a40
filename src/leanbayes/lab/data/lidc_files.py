"""LIDC-IDRI as files: an image of each patient, and a folder of masks for each radiologist.

``python -m leanbayes.lab.data.lidc_files DATA FOLDER 80`` writes those of 80 patients, to try the way from files to a
review page.
"""

import io
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from leanbayes._files import write_bytes
from leanbayes.errors import FileError, InputError
from leanbayes.lab.data.sets.lidc import read_lidc

__all__ = ["main", "write_lidc"]


def write_lidc(
    data: Path | str | None, folder: Path, *, patients: int | None = None, slices: int = 1, side: int = 48
) -> list[Path]:
    """Write the slices of each patient that the radiologists marked most, as PNG files.

    Args:
        data: the data directory, by default `data_dir()`.
        folder: where the folders go.
        patients: how many patients are written, by default all.
        slices: how many slices of each patient are written at most.
        side: the side of the square in the middle of a patch that is kept. Nodules lie in the middle.

    Returns:
        The folders: that of the images, and that of each radiologist. Who marked nothing has an empty mask.
    """
    _, images, masks, whose = read_lidc(data)
    wanted = np.unique(whose)[:patients]
    if slices < 1 or not len(wanted) or not 8 <= side <= min(images.shape[1:]):
        raise InputError(
            f"patients and slices must be at least 1 and side from 8 to {min(images.shape[1:])}, got {patients}, "
            f"{slices} and {side}"
        )
    top, left = ((length - side) // 2 for length in images.shape[1:])
    cut = (slice(top, top + side), slice(left, left + side))
    folders = [folder / "images", *(folder / f"rater{number + 1}" for number in range(masks.shape[1]))]
    for each in folders:
        each.mkdir(parents=True, exist_ok=True)
    marked = masks[(..., *cut)].sum((1, 2, 3))
    for patient in wanted:
        rows = np.flatnonzero(whose == patient)
        for row in sorted(rows[np.argsort(-marked[rows], kind="stable")][:slices].tolist()):
            name = f"P{patient}_{row}.png"
            for each, plane in zip(folders, (images[row], *(255 * masks[row])), strict=True):
                file = io.BytesIO()
                Image.fromarray(np.ascontiguousarray(plane[cut])).save(file, format="PNG")
                write_bytes(each / name, file.getvalue())
    return folders


def main(arguments: Sequence[str] | None = None) -> int:
    """Write files to the folder that the command line names; return the exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if len(words) not in (2, 3) or words[0].startswith("-") or not all(word.isdecimal() for word in words[2:]):
        sys.stderr.write("usage: python -m leanbayes.lab.data.lidc_files DATA FOLDER [PATIENTS]\n")
        return 2
    try:
        write_lidc(words[0], Path(words[1]), patients=int(words[2]) if words[2:] else None)
    except (FileError, InputError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
