"""Readers of scans: NIfTI files, packed or not, DICOM series, folders with masks, and what is copied from them."""

import gzip
import random
from pathlib import Path

import numpy as np

from leanbayes.lab.data import Preparation, read
from leanbayes.lab.data.dicom_seg import write_dicom_seg
from leanbayes.lab.data.new_cases import NewCases
from leanbayes.lab.data.scans import read_scan, scan_files, write_nifti
from tests.fuzz.mutations import damage_bytes, damage_text
from tests.fuzz.reader import Reader
from tests.lab.data.scan_makers import ball_tree, dicom, nifti, patient_of, rotated

__all__ = ["scans"]

_HEADER = 352  # bytes of a NIfTI file before its voxels


def scans(home: Path) -> dict[str, Reader]:
    """Write a NIfTI file, a packed one and a DICOM series, and return their readers."""
    voxels = np.arange(60).reshape(3, 4, 5).astype(np.int16)
    plain = nifti(home / "plain" / "a.nii", voxels, rotated())
    packed = nifti(home / "packed" / "a.nii.gz", voxels, rotated())
    series = dicom(home / "series", voxels)
    slice_ = sorted(series.iterdir())[0]

    whole = dicom(home / "whole", voxels, **patient_of(home / "whole"))
    whole_slice = sorted(whole.iterdir())[0]
    tree = ball_tree(home / "tree", count=6)
    scan, mask = (sorted((tree / part).iterdir())[0] for part in ("images", "masks"))
    groups = tree / "groups.csv"
    names = sorted(file.name for file in (tree / "images").iterdir())
    groups.write_text("name,patient\n" + "".join(f"{name},p{number % 4}\n" for number, name in enumerate(names)))

    def segment() -> None:
        scan = read_scan(whole)
        labels = (scan.values[0] > 0).numpy().astype(np.uint8)
        write_dicom_seg(home / "seg.dcm", labels, scan.geometry, ("background", "lesion"), "0" * 64)

    def copy_geometry() -> None:
        for file in (plain, packed):
            scan = read_scan(file)
            write_nifti(home / "copy.nii.gz", scan.values[0].numpy(), scan.geometry)

    def read_tree() -> None:
        source = read(tree, groups=str(groups), raters=[tree / "masks", tree / "masks"])
        for part in (source.train, source.validation, source.test):
            for row in range(len(part.targets)):
                part.inputs[row], part.targets[row]

    plan = Preparation(
        "pixels", (0.0,), (1.0,), ("a", "b"), size=(8, 8, 8), window=(8, 8, 8), spacing=(1.0, 1.0, 1.0), resample=True
    )

    def new_cases() -> None:
        cases = NewCases(plan, tree / "images")
        for index in range(min(2, len(cases))):
            cases[index].image.sum()

    def header_inside(data: bytes, chance: random.Random) -> bytes:
        return gzip.compress(_header(gzip.decompress(data), chance), mtime=0)

    return {
        "nifti": Reader(plain, lambda: read_scan(plain), damage_bytes),
        "nifti, header": Reader(plain, lambda: read_scan(plain), _header),
        "nifti.gz": Reader(packed, lambda: read_scan(packed), damage_bytes),
        "nifti.gz, header inside": Reader(packed, lambda: read_scan(packed), header_inside),
        "dicom series": Reader(slice_, lambda: read_scan(series), damage_bytes),
        "scans of a folder": Reader(slice_, lambda: scan_files(series), damage_bytes, 0.5),
        "nifti, written again": Reader(plain, copy_geometry, _header),
        "dicom seg": Reader(whole_slice, segment, damage_bytes),
        "dicom seg, texts": Reader(whole_slice, segment, _texts),
        "scan of a folder with masks": Reader(scan, read_tree, header_inside, 0.5),
        "mask of a scan": Reader(mask, read_tree, header_inside, 0.5),
        "groups": Reader(groups, read_tree, damage_text, 0.5),
        "new scans": Reader(scan, new_cases, header_inside, 0.5),
    }


def _header(data: bytes, chance: random.Random) -> bytes:
    return damage_bytes(data[:_HEADER], chance)[:_HEADER].ljust(_HEADER, b"\0") + data[_HEADER:]


def _texts(data: bytes, chance: random.Random) -> bytes:
    """Change values of the header of a DICOM file, and keep its structure, so that the file is read."""
    changed = bytearray(data)
    start, end = 132, max(133, len(data) - 64)  # the pixels are at the end
    for _ in range(chance.choice([1, 2, 8])):
        at = chance.randrange(start, end)
        if 32 <= changed[at] < 127:
            changed[at] = chance.choice(b"0123456789.-\\^ aZ")
    return bytes(changed)
