"""Maps of a segmented image or scan: the predicted classes, and how unsure the model is of each pixel."""

import io
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from leanbayes._files import write_bytes
from leanbayes.errors import InputError, MissingPackage
from leanbayes.lab.cli.overlays import overlay_png
from leanbayes.lab.data.dicom_seg import write_dicom_seg
from leanbayes.lab.data.new_cases import NewCase
from leanbayes.lab.data.patients import without_suffix
from leanbayes.lab.data.scans import write_nifti
from leanbayes.lab.slices import View, largest_slice
from leanbayes.prediction import Prediction

__all__ = ["map_names", "write_map", "write_segments"]


def map_names(images: Iterable[str]) -> dict[str, str]:
    """Return for each image the beginning of the names of its maps, such that no two images share one.

    It is the name of the image, with its folders and without its suffix. Where two images would share that, it is the
    whole name, and where they would share even that, a number makes the difference. Capital letters do not make a
    difference, because some file systems ignore them.

    >>> map_names(["a.png", "b.png", "b.bmp"])
    {'a.png': 'a', 'b.png': 'b.png', 'b.bmp': 'b.bmp'}
    >>> map_names(["c/d.png", "c_d.png"])
    {'c/d.png': 'c_d.png', 'c_d.png': 'c_d.png-2'}
    """
    stems = {image: "_".join(PurePosixPath(without_suffix(image)).parts) for image in images}
    counts = Counter(stem.casefold() for stem in stems.values())
    names, taken = {}, {stem.casefold() for stem in stems.values() if counts[stem.casefold()] == 1}
    for image, stem in stems.items():
        name = stem
        if counts[stem.casefold()] > 1:
            whole = name = "_".join(PurePosixPath(image).parts)
            number = 2
            while name.casefold() in taken:
                name, number = f"{whole}-{number}", number + 1
            taken.add(name.casefold())
        names[image] = name
    return names


def write_map(folder: Path, name: str, prediction: Prediction, case: NewCase) -> None:
    """Write the predicted classes, the uncertainties and an overlay of one case, in the format that the case has.

    A picture gives ``<name>_classes.png``, which holds class indices, and ``<name>_<uncertainty>.png`` for each
    uncertainty, grey from black for 0 to white for log C nats, the most that C classes can have. A scan gives the same
    as ``.nii.gz`` in nats, which lie where the scan lies, voxel for voxel. Volumes from arrays give one .npz file. The
    picture ``<name>_overlay.png`` shows the contours of the prediction and the total uncertainty; of a volume it shows
    the slice with the largest prediction, with the patient's right on the left.

    Args:
        folder: where the files go.
        name: the beginning of the names of the files; see `map_names`.
        prediction: the prediction of this case, at its own size.
        case: the case.
    """
    mean = prediction.mean[0]
    classes, most = mean.argmax(0), math.log(mean.shape[0])
    maps = {kind: getattr(prediction, kind)[0] for kind in ("total", "aleatoric", "epistemic")}
    if case.geometry is not None:
        write_nifti(folder / f"{name}_classes.nii.gz", _array(classes, np.uint8), case.geometry)
        for kind, values in maps.items():
            write_nifti(folder / f"{name}_{kind}.nii.gz", _array(values, np.float32), case.geometry)
    elif classes.dim() == 3:
        data = io.BytesIO()
        arrays: dict[str, Any] = {kind: _array(values, np.float32) for kind, values in maps.items()}
        np.savez_compressed(data, classes=_array(classes, np.uint8), **arrays)
        write_bytes(folder / f"{name}_maps.npz", data.getvalue())
    else:
        _write(folder / f"{name}_classes.png", classes)
        for kind, values in maps.items():
            _write(folder / f"{name}_{kind}.png", (values * (255 / most)).round().clamp(0, 255))
    view = View.of(tuple(classes.shape), None if case.geometry is None else case.geometry.spacing)
    image = view.slices(np.asarray(case.image.detach().to("cpu")))
    labels, total = view.slices(_array(classes, np.int64)), view.slices(_array(maps["total"], np.float32))
    at = largest_slice(labels, total)
    write_bytes(folder / f"{name}_overlay.png", overlay_png(image[:, at], labels[at], total[at], most))


def write_segments(
    folder: Path, name: str, prediction: Prediction, case: NewCase, classes: Sequence[str], model: str
) -> str | None:
    """Write ``<name>_seg.dcm``, a DICOM SEG file, if the case is a DICOM series; return why it could not be written.

    Args:
        folder: where the file goes.
        name: the beginning of its name.
        prediction: the prediction of this case, at its own size.
        case: the case.
        classes: the names of the classes.
        model: the SHA-256 of the file of the model.
    """
    if case.geometry is None or not case.geometry.files:
        return None
    path = folder / f"{name}_seg.dcm"
    try:
        write_dicom_seg(path, _array(prediction.mean[0].argmax(0), np.uint8), case.geometry, classes, model)
    except (InputError, MissingPackage) as error:
        path.unlink(missing_ok=True)  # one of an earlier run would be taken for that of this one
        return str(error)
    return None


def _array(values: Tensor, kind: type) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(np.asarray(values.detach().to("cpu")).astype(kind))


def _write(path: Path, pixels: Tensor) -> None:
    data = io.BytesIO()
    Image.fromarray(np.array(pixels.tolist(), np.uint8)).save(data, format="PNG")
    write_bytes(path, data.getvalue())
