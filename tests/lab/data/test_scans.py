"""Scans come back in place: NIfTI and DICOM, turned, anisotropic, and damaged."""

import os
import random
from pathlib import Path

import nibabel
import numpy as np
import pydicom
import pytest
import torch

from leanbayes.errors import FileError, InputError, LeanBayesError
from leanbayes.lab.data import expansion
from leanbayes.lab.data.scans import Geometry, has_scans, read_scan, resampled, scan_files, write_nifti
from tests.lab.data.scan_makers import dicom, nifti, rotated

RNG = np.random.default_rng(0)


def millimetres(geometry: Geometry, ras: tuple[int, int, int]) -> np.ndarray:
    return geometry.ras_affine @ [*ras, 1]


def test_a_turned_anisotropic_scan_comes_back_voxel_for_voxel(tmp_path: Path) -> None:
    values = RNG.integers(-1000, 2000, (5, 6, 7)).astype(np.int16)
    scan = read_scan(nifti(tmp_path / "a.nii.gz", values, rotated()))
    assert scan.values.dtype == torch.int16
    assert scan.values.shape == (1, 7, 5, 6)
    directions = scan.geometry.ras_affine[:3, :3]
    assert (np.abs(directions).argmax(0) == [0, 1, 2]).all()
    assert (np.diag(directions) > 0).all()
    assert scan.geometry.spacing == pytest.approx((3.0, 0.7, 1.3))
    write_nifti(tmp_path / "b.nii.gz", scan.values[0].numpy(), scan.geometry)
    before, after = (nibabel.load(tmp_path / name) for name in ("a.nii.gz", "b.nii.gz"))
    assert (before.affine == after.affine).all()
    assert before.header.get_zooms() == after.header.get_zooms()
    assert (np.asarray(before.dataobj) == np.asarray(after.dataobj)).all()
    assert nibabel.aff2axcodes(before.affine) == nibabel.aff2axcodes(after.affine)


def test_a_voxel_keeps_its_place_in_millimetres(tmp_path: Path) -> None:
    values = np.zeros((5, 6, 7), np.float32)
    values[1, 2, 3] = 0.5
    scan = read_scan(nifti(tmp_path / "a.nii", values, rotated()))
    assert scan.values.dtype == torch.float32
    (place,) = scan.values[0].nonzero().tolist()
    stored = nibabel.load(tmp_path / "a.nii").affine
    np.testing.assert_allclose(millimetres(scan.geometry, tuple(place)), stored @ [1, 2, 3, 1], atol=1e-9)


def test_a_dicom_series_is_sorted_by_place_and_means_hounsfield_units(tmp_path: Path) -> None:
    values = RNG.integers(0, 3000, (4, 5, 6))
    scan = read_scan(dicom(tmp_path / "s", values))
    assert scan.geometry.spacing == pytest.approx((0.5, 0.8, 2.0))
    for voxel in np.ndindex(4, 5, 6):
        right, front, up = 3 - voxel[0], 4 - voxel[1], voxel[2]  # DICOM counts to the left and to the back
        assert int(scan.values[0, right, front, up]) == values[voxel] - 1000
    column, row, plane = 1, 2, 3
    left_back_up = np.array([10 + 0.5 * column, -20 + 0.8 * row, 5 + 2.0 * plane])
    np.testing.assert_allclose(
        millimetres(scan.geometry, (3 - column, 4 - row, plane))[:3], left_back_up * [-1, -1, 1], atol=1e-9
    )
    write_nifti(tmp_path / "s.nii.gz", scan.values[0].numpy(), scan.geometry)
    again = read_scan(tmp_path / "s.nii.gz")
    assert torch.equal(again.values, scan.values)
    np.testing.assert_allclose(again.geometry.affine, scan.geometry.affine, atol=1e-5)


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (lambda s: (s / "000.dcm").unlink(), "a slice is missing"),
        (lambda s: (s / "copy.dcm").write_bytes((s / "001.dcm").read_bytes()), "show the same slice"),
        (lambda s: (s / "001.dcm").write_bytes((s / "001.dcm").read_bytes()[:300]), "001.dcm"),
    ],
)
def test_series_that_are_not_whole(tmp_path: Path, harm, complaint: str) -> None:
    series = dicom(tmp_path / "s", RNG.integers(0, 9, (4, 5, 6)))
    harm(series)
    with pytest.raises((InputError, FileError), match=complaint):
        read_scan(series)


def test_series_that_are_mixed(tmp_path: Path) -> None:
    series = dicom(tmp_path / "s", RNG.integers(0, 9, (4, 5, 6)))
    other = dicom(tmp_path / "t", RNG.integers(0, 9, (4, 5, 3)))
    for file in other.iterdir():
        (series / f"other{file.name}").write_bytes(file.read_bytes())
    with pytest.raises(InputError, match="9 DICOM files of 2 series"):
        scan_files(tmp_path)
    with pytest.raises(InputError, match="differ in SeriesInstanceUID"):
        read_scan(series)


def test_scans_are_found_by_what_they_are(tmp_path: Path) -> None:
    assert not has_scans(tmp_path)
    nifti(tmp_path / "b.nii.gz", np.zeros((2, 2, 2), np.uint8))
    nifti(tmp_path / ".hidden" / "c.nii.gz", np.zeros((2, 2, 2), np.uint8))
    series = dicom(tmp_path / "x" / "s", RNG.integers(0, 9, (4, 5, 3)))
    (series / "000.dcm").rename(series / "IM0")
    assert scan_files(tmp_path) == [tmp_path / "b.nii.gz", series]
    assert has_scans(tmp_path)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    path = nifti(tmp_path / "a.nii.gz", np.ones((4, 4, 4), np.float32))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(FileError, match=r"a\.nii\.gz"):
        read_scan(path)
    with pytest.raises(InputError, match="NaN"):
        read_scan(nifti(tmp_path / "b.nii.gz", np.full((2, 2, 2), np.nan, np.float32)))


def test_resampling_keeps_linear_ramps_and_classes() -> None:
    ramp = (torch.arange(8) + 0.5)[None, :, None, None].expand(1, 8, 3, 3) / 8
    fine = resampled(ramp, (16, 3, 3))
    torch.testing.assert_close(fine[0, 1:-1, 0, 0], (torch.arange(1, 15) + 0.5) / 16)
    assert resampled((ramp > 0.5).byte(), (16, 3, 3), nearest=True)[0, :, 0, 0].tolist() == [0] * 8 + [1] * 8


def test_damaged_bytes_are_read_or_refused_in_one_line(tmp_path: Path) -> None:
    whole = nifti(tmp_path / "a.nii", np.arange(60).reshape(3, 4, 5).astype(np.int16), rotated()).read_bytes()
    series = dicom(tmp_path / "s", np.arange(60).reshape(3, 4, 5))
    plane = (series / "001.dcm").read_bytes()
    source, refused = random.Random(0), 0
    for number in range(120):
        path, data = (tmp_path / "a.nii", bytearray(whole)) if number % 2 else (series / "001.dcm", bytearray(plane))
        for _ in range(source.choice([1, 3, 10])):
            data[source.randrange(352 if number % 2 else len(data))] = source.randrange(256)
        path.write_bytes(data[: source.randrange(len(data))] if source.random() < 0.2 else data)
        for use in (lambda: read_scan(path if number % 2 else series), lambda: scan_files(tmp_path)):  # noqa: B023
            try:
                use()
            except LeanBayesError as error:
                refused += 1
                assert "\n" not in str(error)  # noqa: PT017
    assert refused > 40


def test_an_affine_that_says_nothing_is_refused(tmp_path: Path) -> None:
    """Found by the fuzz: nibabel gives such a scan no orientation, and turning it raised an error of NumPy."""
    path = nifti(tmp_path / "a.nii", np.zeros((2, 2, 2), np.int16))
    data = bytearray(path.read_bytes())
    data[296:312] = bytes(16)  # the second row of the affine
    path.write_bytes(data)
    with pytest.raises(InputError, match="maps different voxels to one place"):
        read_scan(path)


def test_a_small_scan_cannot_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, voxels were counted instead of their bytes, and a deflated DICOM file could unpack to anything."""
    monkeypatch.setattr(expansion, "_ALWAYS_ALLOWED", 1000)
    bomb = nifti(tmp_path / "double.nii.gz", np.zeros((20, 20, 20)))
    with pytest.raises(FileError, match="more than a file of its size may unpack to"):
        read_scan(bomb)
    image = nibabel.Nifti1Image(np.zeros((20, 20, 20), np.uint8), np.eye(4))
    image.header.set_slope_inter(0.5, 1)  # eight times as large in memory
    nibabel.save(image, tmp_path / "scaled.nii.gz")
    with pytest.raises(FileError, match="more than a file of its size may unpack to"):
        read_scan(tmp_path / "scaled.nii.gz")
    series = dicom(tmp_path / "wide", np.zeros((4, 4, 1)), Rows=30000, Columns=30000)
    with pytest.raises(FileError, match="30000x30000 pixels"):
        read_scan(series)
    deflated = dicom(tmp_path / "deflated", np.zeros((4, 4, 2)))
    for file in deflated.iterdir():
        dataset = pydicom.dcmread(file)
        dataset.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
        dataset.save_as(file)
    for reader in (read_scan, scan_files):
        with pytest.raises(InputError, match="deflated as a whole"):
            reader(deflated)


def test_a_nifti_file_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, geometry = tmp_path / "a.nii.gz", Geometry(np.eye(4), (2, 2, 2))
    write_nifti(path, np.ones((2, 2, 2), np.uint8), geometry)
    flushed, old = [], path.read_bytes()
    flush = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(descriptor) or flush(descriptor))
    write_nifti(tmp_path / "b.nii.gz", np.ones((2, 2, 2), np.uint8), geometry)
    assert len(flushed) == 2  # the file and its folder

    def full(image: object, place: Path) -> None:
        place.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(nibabel, "save", full)
    with pytest.raises(FileError, match="No space left"):
        write_nifti(path, np.zeros((2, 2, 2), np.uint8), geometry)
    assert path.read_bytes() == old
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.nii.gz", "b.nii.gz"]
