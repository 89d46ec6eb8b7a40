r"""Unpack LIDC-IDRI into folders: images, masks of each radiologist, and a table of patients.

The file ``LIDC/lidc_128x128_4raters.npz`` of a data directory holds patches of CT scans in which four radiologists have
marked nodules (`leanbayes.lab.data.sets.lidc` describes it). As folders they are what many users have, and the whole
way from files to maps runs from the shell:

    python examples/lidc.py --data-dir DIRECTORY --out lidc
    leanbayes train --data lidc/images --raters lidc/rater1 lidc/rater2 lidc/rater3 lidc/rater4 \
        --groups lidc/patients.csv --recipe partial --dice 0.5 --epochs 10 --out run
    leanbayes predict run/model.lb lidc/images --out maps

``--patients 120 --each 4 --crop 48`` unpacks fewer and smaller patches, which train in minutes. A radiologist who has
marked nothing in a patch has seen it all the same: the mask is empty, not missing.
"""

import argparse
import csv
from pathlib import Path

import numpy as np
from PIL import Image


def unpack(file: Path, out: Path, patients: int | None = None, each: int | None = None, crop: int | None = None) -> int:
    """Write the patches of an .npz file as PNG files; return how many there are.

    Args:
        file: the .npz file with ``images`` (N, H, W), ``masks`` (N, raters, H, W), perhaps packed, and ``patient``.
        out: the folder that receives ``images``, ``rater1`` and so on, and ``patients.csv``.
        patients: how many patients there are; None takes all.
        each: how many patches of each patient are written at most, evenly from all of them; None writes all.
        crop: the sides of the middle of each patch, where the nodule is; None writes whole patches.
    """
    with np.load(file, allow_pickle=False) as arrays:
        images, masks, whose = arrays["images"], arrays["masks"], arrays["patient"].astype(str)
    if masks.shape[3] != images.shape[2]:
        masks = np.unpackbits(masks, axis=3, count=images.shape[2])
    if crop is not None:
        top, left = ((side - crop) // 2 for side in images.shape[1:])
        images, masks = (a[..., top : top + crop, left : left + crop] for a in (images, masks))
    rows: list[int] = []
    for patient in np.unique(whose)[:patients]:
        of_patient = np.flatnonzero(whose == patient)
        few = len(of_patient) if each is None else min(each, len(of_patient))
        rows += of_patient[np.linspace(0, len(of_patient) - 1, few).round().astype(int)].tolist()
    folders = [out / "images", *(out / f"rater{number + 1}" for number in range(masks.shape[1]))]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    with (out / "patients.csv").open("w", newline="") as table:
        writer = csv.writer(table)
        writer.writerow(["file", "patient"])
        for row in rows:
            name = f"patch{row:05}.png"
            writer.writerow([name, whose[row]])
            for folder, pixels in zip(folders, [images[row], *masks[row]], strict=True):
                Image.fromarray(pixels.astype(np.uint8)).save(folder / name)
    return len(rows)


def main() -> None:
    """Read the command line and unpack the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True, help="the data directory, with the folder LIDC in it")
    parser.add_argument("--out", type=Path, default=Path("lidc"), help="the folder that receives the files")
    parser.add_argument("--patients", type=int, help="how many patients there are; by default all")
    parser.add_argument("--each", type=int, help="how many patches of each patient are written at most")
    parser.add_argument("--crop", type=int, help="the sides of the middle of each patch; by default the whole patch")
    options = parser.parse_args()
    file = options.data_dir / "LIDC" / "lidc_128x128_4raters.npz"
    count = unpack(file, options.out, options.patients, options.each, options.crop)
    print(f"{count} patches in {options.out}")


if __name__ == "__main__":
    main()
