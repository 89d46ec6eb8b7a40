"""DICOM SEG: the mask lies where the series lies, names its segments, and refers to the images."""

from pathlib import Path

import numpy as np
import pydicom
import pytest

from leanbayes.errors import InputError
from leanbayes.lab.data.dicom_seg import write_dicom_seg
from leanbayes.lab.data.scans import Geometry, read_scan
from tests.lab.data.scan_makers import dicom, patient_of

highdicom = pytest.importorskip("highdicom")
NAMES = ("background", "liver", "tumour")


def series(folder: Path, turned: bool = False) -> tuple[Geometry, np.ndarray]:
    """A series without symmetry, and a mask of it with the axes of the file, (column, row, slice)."""
    values = np.random.default_rng(0).integers(0, 2000, (7, 6, 5))
    dicom(folder, values, **patient_of(folder), **({"ImageOrientationPatient": oblique()} if turned else {}))
    if turned:  # the slices of an oblique series lie along its normal
        normal = np.cross(*np.reshape(oblique(), (2, 3)))
        for file in folder.iterdir():
            image = pydicom.dcmread(file)
            place = np.array([10.0, -20.0, 5.0]) + (float(image.ImagePositionPatient[2]) - 5.0) * normal
            image.ImagePositionPatient = [round(float(value), 6) for value in place]
            image.save_as(file)
    mask = np.zeros(values.shape, np.uint8)
    mask[1:3, 2:5, 1:4], mask[5, 0, 4] = 1, 2
    return read_scan(folder).geometry, mask


def oblique() -> list[float]:
    """The directions of rows and columns, turned about two axes."""
    a, b = 0.3, 0.2
    across = [np.cos(a), np.sin(a), 0]
    down = [-np.sin(a) * np.cos(b), np.cos(a) * np.cos(b), np.sin(b)]
    return [round(float(value), 6) for value in (*across, *down)]


def places(file: pydicom.Dataset, segment: int) -> np.ndarray:
    """Where the voxels of a segment lie in millimetres of DICOM, from the attributes of the standard alone."""
    shared = file.SharedFunctionalGroupsSequence[0]
    across, down = np.reshape(np.array(shared.PlaneOrientationSequence[0].ImageOrientationPatient, float), (2, 3))
    between_rows, between_columns = map(float, shared.PixelMeasuresSequence[0].PixelSpacing)
    found = []
    for frame, groups in zip(file.pixel_array, file.PerFrameFunctionalGroupsSequence, strict=True):
        if groups.SegmentIdentificationSequence[0].ReferencedSegmentNumber == segment:
            corner = np.array(groups.PlanePositionSequence[0].ImagePositionPatient, float)
            for row, column in np.argwhere(frame):
                found.append(corner + across * between_columns * column + down * between_rows * row)
    return np.array(found)


@pytest.mark.parametrize("turned", [False, True], ids=["straight", "oblique"])
def test_the_voxels_lie_where_the_scan_lies(tmp_path: Path, turned: bool) -> None:
    geometry, mask = series(tmp_path / "s", turned)
    write_dicom_seg(tmp_path / "seg.dcm", geometry.to_ras(mask), geometry, NAMES, "a" * 64)
    file = pydicom.dcmread(tmp_path / "seg.dcm")
    for segment in (1, 2):
        voxels = np.argwhere(mask == segment)
        expected = (geometry.affine @ np.c_[voxels, np.ones(len(voxels))].T)[:3].T * [-1, -1, 1]
        found = places(file, segment)
        assert len(found) == len(expected)
        apart = np.linalg.norm(found[:, None] - expected, axis=2)
        assert apart.min(0).max() < 1e-3
        assert apart.min(1).max() < 1e-3


@pytest.mark.parametrize("turned", [False, True], ids=["straight", "oblique"])
def test_highdicom_reads_a_volume_that_lies_in_the_series(tmp_path: Path, turned: bool) -> None:
    """A viewer stacks the frames into a volume. Its affine and its voxels must be those of the series."""
    geometry, mask = series(tmp_path / "s", turned)
    write_dicom_seg(tmp_path / "seg.dcm", geometry.to_ras(mask), geometry, NAMES, "a" * 64)
    volume = highdicom.seg.segread(tmp_path / "seg.dcm").get_volume(combine_segments=True)
    # highdicom has the axes slice, row and column, and counts millimetres to the left and to the back as DICOM does
    assert volume.coordinate_system.value == "PATIENT"
    found = np.argwhere(volume.array > 0)
    places_found = (volume.affine @ np.c_[found, np.ones(len(found))].T)[:3].T
    voxels = np.argwhere(mask > 0)
    expected = (geometry.affine @ np.c_[voxels, np.ones(len(voxels))].T)[:3].T * [-1, -1, 1]
    apart = np.linalg.norm(places_found[:, None] - expected, axis=2)
    assert len(found) == len(voxels)
    assert apart.min(1).max() < 1e-3
    assert (volume.array[tuple(found.T)] == mask[tuple(voxels[apart.argmin(1)].T)]).all()
    assert sorted(volume.spacing) == pytest.approx(sorted(geometry.spacing), abs=1e-4)


def test_every_value_is_valid_dicom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pydicom is told to raise an error at each value that breaks a rule of its type, also in names with accents."""
    folder = tmp_path / "s"
    geometry, mask = series(folder)
    for path in geometry.files:
        image = pydicom.dcmread(path)
        image.SpecificCharacterSet, image.PatientName = "ISO_IR 192", "Müller^Jürgen"
        image.save_as(path)
    names = ("background", "Läsion, links: " + "ä" * 90, "tumour\\core")
    write_dicom_seg(tmp_path / "seg.dcm", geometry.to_ras(mask), geometry, names, "a" * 64)
    monkeypatch.setattr(pydicom.config.settings, "_reading_validation_mode", pydicom.config.RAISE)
    file = pydicom.dcmread(tmp_path / "seg.dcm")
    for element in file.iterall():
        assert element.value is not None or element.VM == 0
    pydicom.dataset.validate_file_meta(file.file_meta, enforce_standard=True)
    assert str(file.PatientName) == "Müller^Jürgen"
    labels = [segment.SegmentLabel for segment in file.SegmentSequence]
    assert labels[0].startswith("Läsion, links")
    assert len(labels[0]) == 64
    assert labels[1] == "tumour/core"  # a backslash would divide the label into two values


def test_it_names_segments_and_refers_to_the_series(tmp_path: Path) -> None:
    geometry, mask = series(tmp_path / "s")
    write_dicom_seg(tmp_path / "seg.dcm", geometry.to_ras(mask), geometry, NAMES, "a" * 64)
    file = highdicom.seg.segread(tmp_path / "seg.dcm")
    first = pydicom.dcmread(geometry.files[0])
    assert file.SOPClassUID == pydicom.uid.SegmentationStorage
    assert [segment.SegmentLabel for segment in file.SegmentSequence] == ["liver", "tumour"]
    for name in ("StudyInstanceUID", "FrameOfReferenceUID", "PatientID", "PatientName"):
        assert file[name].value == first[name].value, name
    (referred,) = file.ReferencedSeriesSequence
    assert referred.SeriesInstanceUID == first.SeriesInstanceUID
    images = {str(item.ReferencedSOPInstanceUID) for item in referred.ReferencedInstanceSequence}
    assert images == {str(pydicom.dcmread(path).SOPInstanceUID) for path in geometry.files}
    assert file.DeviceSerialNumber == "a" * 64
    # highdicom reads the same classes back, frame by frame of the series
    order = [str(pydicom.dcmread(path).SOPInstanceUID) for path in geometry.files]
    back = file.get_pixels_by_source_instance(order, combine_segments=True, assert_missing_frames_are_empty=True)
    assert (back == mask.transpose(2, 1, 0)).all()


def test_the_same_mask_has_the_same_identifiers(tmp_path: Path) -> None:
    geometry, mask = series(tmp_path / "s")

    def identifier(labels: np.ndarray, model: str) -> str:
        write_dicom_seg(tmp_path / "seg.dcm", geometry.to_ras(labels), geometry, NAMES, model)
        return str(pydicom.dcmread(tmp_path / "seg.dcm").SOPInstanceUID)

    first = identifier(mask, "a" * 64)
    assert identifier(mask, "a" * 64) == first
    assert identifier(mask, "b" * 64) != first
    assert identifier(1 - mask.clip(0, 1), "a" * 64) != first


def test_an_empty_mask_and_a_single_slice(tmp_path: Path) -> None:
    geometry, mask = series(tmp_path / "s")
    write_dicom_seg(tmp_path / "seg.dcm", geometry.to_ras(0 * mask), geometry, NAMES, "a" * 64)
    file = pydicom.dcmread(tmp_path / "seg.dcm")
    assert not file.pixel_array.any()
    assert len(file.SegmentSequence) == 2
    dicom(tmp_path / "t", np.zeros((7, 6, 1), int), **patient_of(tmp_path / "t"))
    geometry = read_scan(tmp_path / "t").geometry
    write_dicom_seg(tmp_path / "one.dcm", geometry.to_ras(mask[:, :, 1:2]), geometry, NAMES, "a" * 64)
    assert (pydicom.dcmread(tmp_path / "one.dcm").pixel_array == mask[:, :, 1].T).all()


@pytest.mark.parametrize("name", ["StudyInstanceUID", "FrameOfReferenceUID", "PatientID"])
def test_a_series_that_nobody_can_refer_to_is_refused(tmp_path: Path, name: str) -> None:
    geometry, mask = series(tmp_path / "s")
    for path in geometry.files:
        image = pydicom.dcmread(path)
        del image[name]
        image.save_as(path)
    with pytest.raises(InputError, match=f"has no {name}"):
        write_dicom_seg(tmp_path / "seg.dcm", geometry.to_ras(mask), geometry, NAMES, "a" * 64)
    assert not (tmp_path / "seg.dcm").exists()


def test_headers_that_highdicom_cannot_use_are_one_line(tmp_path: Path) -> None:
    """Before, the error of highdicom ended predict, and the predictions of all other cases were lost."""
    geometry, mask = series(tmp_path / "s")
    image = pydicom.dcmread(geometry.files[0])
    image.StudyInstanceUID = "1.2.3"
    image.save_as(geometry.files[0])
    with pytest.raises(InputError, match="no DICOM SEG can be made: Source images"):
        write_dicom_seg(tmp_path / "seg.dcm", geometry.to_ras(mask), geometry, NAMES, "a" * 64)
    assert not (tmp_path / "seg.dcm").exists()
