"""Readers of scans: NIfTI files, packed or not, and DICOM series."""

import gzip
import random
from pathlib import Path

import numpy as np

from leanbayes.lab.data.scans import read_scan, scan_files
from tests.fuzz.mutations import damage_bytes
from tests.fuzz.reader import Reader
from tests.lab.data.scan_makers import dicom, nifti, rotated

__all__ = ["scans"]

_HEADER = 352  # bytes of a NIfTI file before its voxels


def scans(home: Path) -> dict[str, Reader]:
    """Write a NIfTI file, a packed one and a DICOM series, and return their readers."""
    voxels = np.arange(60).reshape(3, 4, 5).astype(np.int16)
    plain = nifti(home / "plain" / "a.nii", voxels, rotated())
    packed = nifti(home / "packed" / "a.nii.gz", voxels, rotated())
    series = dicom(home / "series", voxels)
    slice_ = sorted(series.iterdir())[0]

    def header_inside(data: bytes, chance: random.Random) -> bytes:
        return gzip.compress(_header(gzip.decompress(data), chance), mtime=0)

    return {
        "nifti": Reader(plain, lambda: read_scan(plain), damage_bytes),
        "nifti, header": Reader(plain, lambda: read_scan(plain), _header),
        "nifti.gz": Reader(packed, lambda: read_scan(packed), damage_bytes),
        "nifti.gz, header inside": Reader(packed, lambda: read_scan(packed), header_inside),
        "dicom series": Reader(slice_, lambda: read_scan(series), damage_bytes),
        "scans of a folder": Reader(slice_, lambda: scan_files(series), damage_bytes, 0.5),
    }


def _header(data: bytes, chance: random.Random) -> bytes:
    return damage_bytes(data[:_HEADER], chance)[:_HEADER].ljust(_HEADER, b"\0") + data[_HEADER:]
