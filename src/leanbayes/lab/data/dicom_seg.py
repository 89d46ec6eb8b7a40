"""DICOM SEG: a segmentation as a DICOM file that refers to the images of its series, for viewers and archives."""

import hashlib
import io
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from leanbayes._files import write_bytes
from leanbayes.errors import InputError, LeanBayesError, MissingPackage
from leanbayes.lab.data.arrays import Array
from leanbayes.lab.data.scans import Geometry

__all__ = ["write_dicom_seg"]

_NEEDED = (
    *("StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID", "SOPClassUID", "FrameOfReferenceUID"),
    *("PatientID", "PatientName", "PatientBirthDate", "PatientSex", "AccessionNumber", "StudyID", "StudyDate"),
    *("StudyTime", "ReferringPhysicianName"),
)
"""What the file copies from the images. Empty values will do for the names and dates, but not for the identifiers."""

_LONGEST = 64  # characters of a label in DICOM


def write_dicom_seg(path: Path, labels: Array, geometry: Geometry, names: Sequence[str], model: str) -> None:
    """Write the predicted classes of a DICOM series as a DICOM SEG file with one segment for each foreground class.

    The identifiers of the file follow from its voxels, the series and the model. So the same prediction has the same
    identifiers, and another one has others.

    Args:
        path: the file, which ends in .dcm.
        labels: the class of each voxel in RAS, (right, front, up).
        geometry: that of the series, which knows its files.
        names: the names of all classes; the first one is the background and no segment.
        model: the SHA-256 of the file of the model.

    Raises:
        InputError: the images lack something that the file must refer to, or highdicom cannot use what they have.
    """
    try:
        data = _encoded(labels, geometry, names, model)
    except LeanBayesError:
        raise
    except Exception as error:  # what highdicom raises on unusual headers is not documented
        reason = str(error).partition("\n")[0] or type(error).__name__
        where = geometry.files[0].parent
        raise InputError(f"the series in {where} has headers of which no DICOM SEG can be made: {reason}") from error
    write_bytes(path, data)


def _encoded(labels: Array, geometry: Geometry, names: Sequence[str], model: str) -> bytes:
    """Return the bytes of the file."""
    highdicom, codes = _highdicom()
    import pydicom
    from pydicom.uid import generate_uid

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # pydicom and highdicom warn about values that nothing depends on
        images = [pydicom.dcmread(file, stop_before_pixels=True) for file in geometry.files]
        _check(images, geometry.files)
        # (column, row, slice) of the file's axes to (slice, row, column), as the frames of DICOM lie.
        frames = np.ascontiguousarray(geometry.from_ras(labels).transpose(2, 1, 0).astype(np.uint8))
        digest = hashlib.sha256(frames.tobytes()).hexdigest()
        sources = [str(images[0].SeriesInstanceUID), model, digest]
        algorithm = highdicom.AlgorithmIdentificationSequence(
            name="LeanBayes", version=version("leanbayes"), family=codes.DCM.ArtificialIntelligence
        )
        segments = [
            highdicom.seg.SegmentDescription(
                segment_number=number,
                segment_label=_label(name),
                # DICOM wants a code for what a segment is, and the names of classes are free: tissue is always right.
                segmented_property_category=codes.SCT.Tissue,
                segmented_property_type=codes.SCT.Tissue,
                algorithm_type=highdicom.seg.SegmentAlgorithmTypeValues.AUTOMATIC,
                algorithm_identification=algorithm,
            )
            for number, name in enumerate(names[1:], 1)
        ]
        file = highdicom.seg.Segmentation(
            source_images=images,
            pixel_array=frames,
            segmentation_type=highdicom.seg.SegmentationTypeValues.BINARY,
            segment_descriptions=segments,
            series_instance_uid=generate_uid(entropy_srcs=[*sources, "series"]),
            series_number=1,
            sop_instance_uid=generate_uid(entropy_srcs=[*sources, "instance"]),
            instance_number=1,
            manufacturer="LeanBayes",
            manufacturer_model_name="LeanBayes",
            software_versions=version("leanbayes"),
            device_serial_number=model[:_LONGEST],
            series_description="Predicted segmentation",
        )
        data = io.BytesIO()
        file.save_as(data)
    return data.getvalue()


def _label(name: str) -> str:
    """A name as a label of DICOM, in which a backslash would divide values and control signs are forbidden."""
    allowed = "".join("/" if character == "\\" else character if character.isprintable() else " " for character in name)
    return allowed[:_LONGEST]


def _check(images: Sequence[Any], files: Sequence[Path]) -> None:
    for image, file in zip(images, files, strict=True):
        missing = [name for name in _NEEDED if name not in image]
        missing += [name for name in _NEEDED[:5] if name in image and not image.get(name)]
        if missing:
            raise InputError(
                f"DICOM file {file} has no {missing[0]}, which a DICOM SEG must refer to; add it, or use the NIfTI file"
            )


def _highdicom() -> tuple[Any, Any]:
    try:
        import highdicom
        from pydicom.sr.codedict import codes
    except ImportError as error:
        raise MissingPackage.of("writing DICOM SEG", "highdicom", "medical") from error
    return highdicom, codes
