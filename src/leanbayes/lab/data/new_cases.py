"""New images or scans for a trained model, which are read when they are needed, and the way back to their own size."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from leanbayes.errors import FileError, InputError
from leanbayes.lab.data.images import Size, image_files, image_size, read_image
from leanbayes.lab.data.preparation import Preparation
from leanbayes.lab.data.scan_sets import as_input, own_size
from leanbayes.lab.data.scans import Geometry, is_scan, read_scan, resampled, scan_files
from leanbayes.prediction import Prediction

__all__ = ["NewCase", "NewCases"]

_ALIKE = 0.01  # the share by which spacings may differ


@dataclass(frozen=True)
class NewCase:
    """One new input.

    Args:
        name: the name of its file below the folder of inputs, or the number of its row.
        x: the input as the model takes it.
        size: the size of the image or scan itself, in RAS for scans; None for other data.
        geometry: where the voxels of a scan lie; None for pictures and arrays.
        read: for segmentation, a function that returns the image or scan itself, (channels, *size), which a person
            looks at. The images of a batch may be large, so each is read when it is needed.
    """

    name: str
    x: Tensor
    size: Size | None = None
    geometry: Geometry | None = None
    read: Callable[[], Tensor] | None = None

    @property
    def image(self) -> Tensor:
        """The image or scan itself, or what the model takes if there is nothing else."""
        return self.x if self.read is None else self.read()

    def restored(self, prediction: Prediction, row: int) -> Prediction:
        """Return one row of a batch of predictions at the size of the image itself.

        Probabilities and uncertainties are interpolated linearly, which changes nothing if the size is the same.
        """

        def own(values: Tensor) -> Tensor:
            if self.size is None:
                return values
            flat = self.size if len(self.size) == values.dim() - 1 else tuple(side for side in self.size if side != 1)
            return resampled(values, flat).reshape(len(values), *self.size)

        one = slice(row, row + 1)
        maps = {name: own(getattr(prediction, name)[one]) for name in ("total", "aleatoric", "epistemic")}
        samples = prediction.samples
        drawn = None if samples is None else torch.stack([own(draw) for draw in samples[:, row]])[:, None]
        return replace(
            prediction,
            mean=own(prediction.mean[row])[None],
            **maps,
            standard_error=prediction.standard_error[one],
            draws=prediction.draws[one],
            samples=drawn,
        )


class NewCases:
    """The inputs that lie at a path: an image, a scan, a folder of them, an .npz file or a CSV file.

    Args:
        plan: how the model takes its inputs.
        path: where they lie.
        files: those files below the folder that are wanted; by default all images or scans in it.

    Attributes:
        names: the name of each input.
    """

    def __init__(self, plan: Preparation, path: Path, files: Sequence[Path] | None = None) -> None:
        if not path.exists():
            raise FileError(f"there is no file or folder {path}; check the path")
        self.plan = plan
        self.rows: list[tuple[str, Tensor]] = []
        self.files: list[Path] = []
        self.scans = plan.spacing is not None and path.suffix.lower() != ".npz"
        top = path if path.is_dir() else path.parent
        if files is not None:
            self.files = list(files)
        elif self.scans:
            self.files = scan_files(path) if path.is_dir() else [path] if is_scan(path) else []
            if not self.files:
                raise InputError(f"the model takes scans; give a NIfTI file, a DICOM series or a folder, not {path}")
        elif path.is_dir() and plan.size is not None:
            self.files = image_files(path)
        if self.files:
            self.names = [path.name if file == path else file.relative_to(top).as_posix() for file in self.files]
        else:
            self.rows = list(plan.inputs(path))
            self.names = [name for name, _ in self.rows]
            self.only = path

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> NewCase:
        name = self.names[index]
        if self.scans:
            return self._scan(name, self.files[index])
        if self.files:
            ((_, x),) = self.plan.inputs(self.files[index])
            return self._picture(name, x, self.files[index])
        _, x = self.rows[index]
        if self.plan.size is not None and self.only.suffix.lower() != ".npz":
            return self._picture(name, x, self.only)
        return NewCase(name, x, read=partial(self.plan.original, x))

    def _picture(self, name: str, x: Tensor, file: Path) -> NewCase:
        """A model may see a picture at another size, but a person looks at the picture itself."""
        return NewCase(name, x, image_size(file), read=partial(read_image, file, len(self.plan.mean)))

    def _scan(self, name: str, file: Path) -> NewCase:
        plan, scan = self.plan, read_scan(file)
        geometry, flat = scan.geometry, len(plan.size or ()) == 2
        shape = tuple(scan.values.shape[1:])
        if len(scan.values) != len(plan.mean) or (flat and 1 not in shape):
            raise InputError(
                f"scan {file} has {len(scan.values)} channels of {'x'.join(map(str, shape))} voxels, but the model "
                f"takes {len(plan.mean)} channels of {'single slices' if flat else 'volumes'}"
            )
        wanted = np.array(plan.spacing)
        if flat:
            wanted = np.insert(wanted, shape.index(1), geometry.spacing[shape.index(1)])
        if not plan.resample and not np.allclose(geometry.spacing, wanted, rtol=_ALIKE, atol=0):
            raise InputError(
                f"scan {file} has the spacing {_mm(geometry.spacing)} mm, but the model was trained on {_mm(wanted)} "
                "mm; train it with spacing=..., so that it takes scans of any spacing"
            )
        size = own_size(geometry, tuple(wanted.tolist()) if plan.resample else None, flat)
        if plan.window is None and size != plan.size:
            raise InputError(
                f"scan {file} has {'x'.join(map(str, size))} voxels, but the model takes "
                f"{'x'.join(map(str, plan.size or ()))}; train it with window=..., so that it takes scans of any size"
            )
        return NewCase(name, plan.standardise(as_input(scan, size, flat)), shape, geometry, lambda: scan.values)


def _mm(spacing: object) -> str:
    return " x ".join(f"{float(step):.4g}" for step in np.asarray(spacing))
