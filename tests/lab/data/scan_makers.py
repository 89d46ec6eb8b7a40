"""Small scans on disk: NIfTI files and DICOM series."""

from pathlib import Path

import nibabel
import numpy as np
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid


def rotated(spacing: tuple[float, float, float] = (0.7, 1.3, 3.0)) -> np.ndarray:
    """An affine that is turned about two axes, swaps axes and flips one, with an offset."""
    a, b = 0.3, -0.2
    about_z = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]])
    about_x = np.array([[1, 0, 0], [0, np.cos(b), -np.sin(b)], [0, np.sin(b), np.cos(b)]])
    swap = np.array([[0, 0, 1.0], [-1, 0, 0], [0, 1, 0]])
    affine = np.eye(4)
    affine[:3, :3] = about_z @ about_x @ swap @ np.diag(spacing)
    affine[:3, 3] = -40.5, 12.25, 7
    return affine


def nifti(path: Path, values: np.ndarray, affine: np.ndarray | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(values, np.eye(4) if affine is None else affine), path)
    return path


def dicom(folder: Path, values: np.ndarray, spacing=(0.5, 0.8, 2.0), intercept: int = -1000, **changes) -> Path:
    """A series of the planes values[:, :, k] of (column, row, slice); its file names are in another order."""
    folder.mkdir(parents=True, exist_ok=True)
    series = generate_uid(entropy_srcs=[str(folder)])
    count = values.shape[2]
    for k in range(count):
        image = Dataset()
        image.file_meta = FileMetaDataset()
        image.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        image.file_meta.MediaStorageSOPClassUID = image.SOPClassUID = CTImageStorage
        image.file_meta.MediaStorageSOPInstanceUID = image.SOPInstanceUID = generate_uid(
            entropy_srcs=[str(folder), str(k)]
        )
        image.SeriesInstanceUID = series
        image.Rows, image.Columns = values.shape[1], values.shape[0]
        image.PixelSpacing = [spacing[1], spacing[0]]
        image.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
        image.ImagePositionPatient = [10.0, -20.0, 5.0 + spacing[2] * k]
        image.SliceThickness = spacing[2]
        image.SamplesPerPixel, image.PhotometricInterpretation = 1, "MONOCHROME2"
        image.BitsAllocated, image.BitsStored, image.HighBit, image.PixelRepresentation = 16, 16, 15, 0
        image.RescaleSlope, image.RescaleIntercept = 1, intercept
        for name, value in changes.items():
            setattr(image, name, value)
        image.PixelData = np.ascontiguousarray(values[:, :, k].T.astype(np.uint16)).tobytes()
        image.save_as(folder / f"{(count + 2 - k) % count:03}.dcm", enforce_file_format=True)
    return folder


def patient_of(folder: Path) -> dict[str, object]:
    """What a whole series says of its patient and its study, which DICOM SEG refers to."""
    study, frame = (generate_uid(entropy_srcs=[str(folder), what]) for what in ("study", "frame"))
    texts = {"PatientID": "7", "PatientName": "Doe^Jane", "PatientBirthDate": "19700101", "PatientSex": "F"}
    texts |= {"AccessionNumber": "", "StudyID": "1", "StudyDate": "20240101", "StudyTime": "120000"}
    more = {"ReferringPhysicianName": "", "Modality": "CT", "PositionReferenceIndicator": ""}
    return {"StudyInstanceUID": study, "FrameOfReferenceUID": frame, **texts, **more}


def ball_tree(top: Path, count: int = 8, sizes: tuple[tuple[int, int, int], ...] = ((12, 14, 10),)) -> Path:
    """images/ and masks/: a bright ball in noise, in scans that are turned and whose voxels are no cubes."""
    random = np.random.default_rng(0)
    for index in range(count):
        shape = sizes[index % len(sizes)]
        grid = np.indices(shape) - random.uniform(3, np.array(shape) - 3).reshape(3, 1, 1, 1)
        ball = (grid**2).sum(0) < 10
        scan = (random.normal(size=shape) * 20 + 100 * ball).astype(np.int16)
        nifti(top / "images" / f"p{index // 2}_{index}.nii.gz", scan, rotated())
        nifti(top / "masks" / f"p{index // 2}_{index}.nii.gz", ball.astype(np.uint8), rotated())
    return top
