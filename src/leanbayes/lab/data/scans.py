"""Scans: NIfTI files and DICOM series, with where in the patient each voxel lies.

A scan is brought to the orientation in which its axes run to the right, to the front and to the head (RAS), by turning
and swapping axes only. So networks see all scans alike, and what they predict is turned back without any loss.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes._files import write_file
from leanbayes.errors import FileError, InputError, LeanBayesError, MissingPackage
from leanbayes.lab.data.arrays import Array
from leanbayes.lab.data.expansion import largest_expansion
from leanbayes.lab.data.images import Size

__all__ = [
    "Geometry",
    "Scan",
    "has_scans",
    "is_scan",
    "read_scan",
    "resampled",
    "scan_files",
    "sizes_at",
    "write_nifti",
]

NIFTI = (".nii", ".nii.gz")
DICOM = (".dcm", ".dicom", ".ima")
_DEFLATED = "1.2.840.10008.1.2.1.99"  # the transfer syntax
_SMALL = 32767  # integers up to here fit in 16 bits


@dataclass(frozen=True)
class Geometry:
    """Where the voxels of a scan lie, as its file has it.

    Args:
        affine: takes the indices of a voxel of the file to millimetres (right, front, up), 4x4.
        shape: how many voxels the file has along each axis.
        header: the header of a NIfTI file, whose texts and codes are kept; None for DICOM.
        files: the files of a DICOM series in the order of its slices; empty for NIfTI.
    """

    affine: Array
    shape: Size
    header: Any = None
    files: tuple[Path, ...] = ()

    @property
    def turn(self) -> Array:
        """How the axes of the file become those of RAS, as nibabel describes it."""
        orientation: Array = _nibabel().io_orientation(self.affine)
        return orientation

    def to_ras(self, values: Array) -> Array:
        """Turn an array with the axes of the file into RAS; further axes may follow."""
        return np.ascontiguousarray(_nibabel().apply_orientation(values, self.turn))

    def from_ras(self, values: Array) -> Array:
        """Turn an array in RAS back to the axes of the file."""
        back = np.empty((3, 2))
        for axis, (ras_axis, flip) in enumerate(self.turn):
            back[int(ras_axis)] = axis, flip
        return np.ascontiguousarray(_nibabel().apply_orientation(values, back))

    @property
    def ras_affine(self) -> Array:
        """The affine of the scan after it was turned to RAS."""
        affine: Array = self.affine @ _nibabel().orientations.inv_ornt_aff(self.turn, self.shape)
        return affine

    @property
    def spacing(self) -> tuple[float, ...]:
        """The distance of two voxels along each axis of RAS, in millimetres."""
        steps = np.sqrt(np.square(self.ras_affine[:3, :3]).sum(0))
        return tuple(float(step) for step in steps)


@dataclass(frozen=True)
class Scan:
    """The voxels of a scan in RAS, (channels, right, front, up), and where they come from."""

    values: Tensor
    geometry: Geometry


def is_scan(path: Path) -> bool:
    """Return whether a file is a NIfTI file or an image of a DICOM series, by its name or by its first bytes."""
    name = path.name.lower()
    if name.startswith(".") or not path.is_file():
        return False
    return name.endswith(NIFTI) or _is_dicom(path)


def has_scans(folder: Path) -> bool:
    """Return whether there is a scan in a folder or below it."""
    return any(is_scan(path) for path in folder.rglob("*"))


def scan_files(folder: Path) -> list[Path]:
    """Return the scans in a folder and below it, sorted by path: NIfTI files, and the folders of DICOM series.

    Several DICOM files in one folder are one series, or each of them is an image of its own if no two share a series.
    """
    files = [path for path in sorted(folder.rglob("*")) if is_scan(path) and not _is_hidden(path, folder)]
    scans = [path for path in files if path.name.lower().endswith(NIFTI)]
    slices: dict[Path, list[Path]] = {}
    for path in files:
        if not path.name.lower().endswith(NIFTI):
            slices.setdefault(path.parent, []).append(path)
    for parent, paths in slices.items():
        series = {_series_of(path) for path in paths}
        if len(series) not in (1, len(paths)):
            raise InputError(
                f"{parent} holds {len(paths)} DICOM files of {len(series)} series; put each series in a folder of its "
                "own"
            )
        scans += [parent] if len(series) == 1 and len(paths) > 1 else paths
    return sorted(scans)


def read_scan(path: Path) -> Scan:
    """Read a NIfTI file, a DICOM file, or the folder of a DICOM series.

    Numbers are those that the file means, such as Hounsfield units. Whole numbers of 16 bits stay whole numbers.
    """
    try:
        if path.is_file() and path.name.lower().endswith(NIFTI):
            with _nibabel().imageglobals.LoggingOutputSuppressor():  # it logs every header value that it repairs
                values, geometry = _read_nifti(path)
        else:
            with _quietly():
                values, geometry = _read_dicom(path)
    except LeanBayesError:
        raise
    except Exception as error:  # what decoders raise on damaged files is not documented
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise FileError(f"cannot read scan {path}: {reason}; remove it or copy it again") from error
    if not np.isfinite(values).all():
        raise InputError(f"scan {path} has NaN or infinite values; fill them, or remove the scan")
    turned = np.moveaxis(geometry.to_ras(values), 3, 0)
    whole = turned.dtype.kind in "iub" or bool((turned == np.round(turned)).all())
    small = whole and turned.min() >= -_SMALL and turned.max() <= _SMALL
    return Scan(torch.from_numpy(np.ascontiguousarray(turned, np.int16 if small else np.float32)), geometry)


def resampled(values: Tensor, size: Sequence[int], nearest: bool = False) -> Tensor:
    """Bring voxels (channels, ...) to another size that covers the same space, linearly or by the nearest voxel."""
    if tuple(values.shape[1:]) == tuple(size):
        return values
    if nearest:
        return F.interpolate(values[None].float(), tuple(size), mode="nearest-exact")[0].to(values.dtype)
    mode = {1: "linear", 2: "bilinear", 3: "trilinear"}[len(size)]
    return F.interpolate(values[None].float(), tuple(size), mode=mode, align_corners=False)[0]


def write_nifti(path: Path, values: Array, geometry: Geometry) -> None:
    """Write voxels in RAS as a NIfTI file that lies where the scan lies, voxel for voxel.

    Args:
        path: the file, which ends in .nii.gz.
        values: the voxels, (right, front, up).
        geometry: that of the scan.
    """
    nibabel = _nibabel()
    turned = geometry.from_ras(values)
    if geometry.header is None:
        image = nibabel.Nifti1Image(turned, geometry.affine)
        image.header.set_xyzt_units("mm")
    else:
        header = geometry.header.copy()
        header.set_data_dtype(turned.dtype)
        header["scl_slope"], header["scl_inter"], header["cal_min"], header["cal_max"] = 1, 0, 0, 0
        image = nibabel.Nifti1Image(turned, None, header)
    write_file(path, lambda temporary: nibabel.save(image, temporary))


def _read_nifti(path: Path) -> tuple[Array, Geometry]:
    image = _nibabel().load(path)
    shape = tuple(image.shape)
    if len(shape) not in (2, 3, 4) or min(shape, default=0) < 1:
        raise InputError(f"scan {path} has the shape {shape}; it must have two or three axes, and channels may follow")
    scaled = (image.dataobj.slope, image.dataobj.inter) != (1, 0)  # then nibabel makes float64 of whole numbers
    bytes_each = max(image.get_data_dtype().itemsize, 8 if scaled else 1)
    if np.prod(shape, dtype=np.float64) * bytes_each > largest_expansion(path.stat().st_size):
        raise FileError(f"{path} claims {shape} voxels, more than a file of its size may unpack to; copy it again")
    values = np.asanyarray(image.dataobj)
    values = values.reshape(*shape, *(1 for _ in range(4 - len(shape))))
    affine = np.asarray(image.affine, np.float64)
    if not np.isfinite(affine).all() or abs(np.linalg.det(affine[:3, :3])) < 1e-12:
        raise InputError(
            f"scan {path} has an affine that maps different voxels to one place, so nobody knows how it lies; its axes "
            f"are {affine[:3, :3].tolist()}; write it again with the right affine"
        )
    header = image.header.copy()
    if len(shape) == 4:
        header.set_data_shape(shape[:3])
    return values, Geometry(affine, values.shape[:3], header)


def _read_dicom(path: Path) -> tuple[Array, Geometry]:
    """Sort the images of a series by where they lie along the normal of their plane, and stack them."""
    files = [path] if path.is_file() else [file for file in sorted(path.iterdir()) if _is_dicom(file)]
    if not files:
        raise InputError(f"{path} has no DICOM files; give a folder that holds a series")
    images = [_dicom(file) for file in files]
    first = images[0]
    for file, image in zip(files, images, strict=True):
        _check_image(file, image, first, files[0])
    along_row, along_column = np.reshape(np.array(first.ImageOrientationPatient, float), (2, 3))
    normal = np.cross(along_row, along_column)
    heights = [float(np.dot(normal, np.array(image.ImagePositionPatient, float))) for image in images]
    order = np.argsort(heights, kind="stable")
    step = _slice_step(path, [files[i] for i in order], np.array(heights)[order], first)
    planes = [
        images[i].pixel_array.T * float(images[i].get("RescaleSlope", 1)) + float(images[i].get("RescaleIntercept", 0))
        for i in order
    ]
    between_rows, between_columns = (float(value) for value in first.PixelSpacing)
    lowest = images[order[0]]
    affine = np.eye(4)
    affine[:3, 0], affine[:3, 1] = along_row * between_columns, along_column * between_rows
    affine[:3, 2] = normal * step
    affine[:3, 3] = np.array(lowest.ImagePositionPatient, float)
    affine = np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine  # DICOM counts to the left and to the back
    values = np.stack(planes, 2)[..., None]
    return values, Geometry(affine, values.shape[:3], files=tuple(files[i] for i in order))


def _check_image(file: Path, image: Any, first: Any, first_file: Path) -> None:
    needed = ("ImageOrientationPatient", "ImagePositionPatient", "PixelSpacing", "Rows", "Columns")
    for name in needed:
        if name not in image:
            raise InputError(f"DICOM file {file} has no {name}, so nobody knows where its pixels lie; remove it")
    if 8 * int(image.Rows) * int(image.Columns) > largest_expansion(file.stat().st_size):  # its numbers become float64
        raise FileError(f"DICOM file {file} claims {image.Rows}x{image.Columns} pixels, more than its size allows")
    if int(image.get("NumberOfFrames", 1)) > 1 or int(image.get("SamplesPerPixel", 1)) > 1:
        raise InputError(f"DICOM file {file} holds several frames or colours; save one grey image in each file")
    for name in ("SeriesInstanceUID", "Rows", "Columns", "PixelSpacing", "ImageOrientationPatient"):
        ours, theirs = image.get(name), first.get(name)
        same = ours == theirs if isinstance(ours, str | int) else np.allclose(ours, theirs, rtol=0, atol=1e-4)
        if not same:
            raise InputError(
                f"DICOM files {file} and {first_file.name} differ in {name} ({ours} and {theirs}); put each series in "
                "a folder of its own"
            )


def _slice_step(path: Path, files: Sequence[Path], heights: Array, first: Any) -> float:
    """Return the distance of two slices; gaps and slices in one place are errors."""
    if len(files) == 1:
        return float(first.get("SpacingBetweenSlices", first.get("SliceThickness", 1)) or 1)
    steps = np.diff(heights)
    usual = float(np.median(steps))
    for index, step in enumerate(steps):
        if step < 1e-3:
            raise InputError(f"{files[index]} and {files[index + 1].name} show the same slice; remove one of them")
        if abs(step - usual) > max(0.01 * usual, 1e-3):
            missing = "a slice is missing" if step > 1.5 * usual else "the slices are not evenly spaced"
            raise InputError(
                f"in the series {path} {missing}: {files[index].name} and {files[index + 1].name} are {step:.4g} mm "
                f"apart, others {usual:.4g} mm; copy the series again"
            )
    return float((heights[-1] - heights[0]) / (len(files) - 1))


def _is_dicom(path: Path) -> bool:
    suffix = path.suffix.lower()
    if not path.is_file() or path.name.startswith(".") or (suffix not in DICOM and suffix[1:].isalpha()):
        return False
    with path.open("rb") as file:
        return file.read(132)[128:] == b"DICM"


def _dicom(path: Path, **options: Any) -> Any:
    """Read a DICOM file. One that is deflated as a whole states no size, and could unpack to a thousand times of it."""
    pydicom = _pydicom()
    if pydicom.filereader.read_file_meta_info(path).get("TransferSyntaxUID") == _DEFLATED:
        raise InputError(f"DICOM file {path} is deflated as a whole; save it without that, such as with gdcmconv --raw")
    return pydicom.dcmread(path, **options)


def _series_of(path: Path) -> str:
    try:
        with _quietly():
            header = _dicom(path, stop_before_pixels=True, specific_tags=["SeriesInstanceUID"])
            return str(header.get("SeriesInstanceUID", ""))
    except LeanBayesError:
        raise
    except Exception as error:  # what decoders raise on damaged files is not documented
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise FileError(f"cannot read DICOM file {path}: {reason}; remove it or copy it again") from error


@contextmanager
def _quietly() -> Iterator[None]:
    """Leave out the warnings of pydicom about values that no rule of ours depends on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _nibabel() -> Any:
    try:
        import nibabel
    except ImportError as error:
        raise MissingPackage.of("reading NIfTI files", "nibabel", "medical") from error
    return nibabel


def _pydicom() -> Any:
    try:
        import pydicom
    except ImportError as error:
        raise MissingPackage.of("reading DICOM files", "pydicom", "medical") from error
    return pydicom


def sizes_at(shape: Sequence[int], spacing: Sequence[float], wanted: Sequence[float]) -> Iterator[int]:
    """Yield how many voxels of the wanted spacing cover the space of a scan along each axis."""
    for count, step, target in zip(shape, spacing, wanted, strict=True):
        yield max(1, round(count * step / target))
