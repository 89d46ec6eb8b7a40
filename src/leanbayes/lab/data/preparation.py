"""How inputs are prepared for a model.

A `Preparation` is computed from the training set and saved beside the model. The model then sees every later input as
it saw those of its training.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leanbayes.errors import FileError, ForeignFile, InputError, UnknownName
from leanbayes.lab.data.arrays import as_inputs, load_npz
from leanbayes.lab.data.images import MOST_PIXELS, SUFFIXES, HeldImage, Size, image_files, read_image
from leanbayes.lab.data.tables import read_csv
from leanbayes.prediction import Prediction

__all__ = ["Kind", "Preparation", "statistics"]

Kind = Literal["classes", "labels", "pixels", "regression"]
"""What is predicted: one class of several; several yes-or-no labels; a class for each pixel; or numbers."""


@dataclass(frozen=True)
class Preparation:
    """How a file becomes an input of a model, and what the model's outputs stand for.

    It holds numbers and texts only, so that it can be saved as JSON.

    Args:
        kind: what is predicted.
        mean: the mean of the training inputs, one number for each channel or feature. Bytes count as numbers in [0, 1].
        std: the standard deviations of the training inputs, by which inputs are divided.
        classes: the names of the classes or labels, in the order of the outputs.
        size: the height and width of images, or the depth, height and width of volumes; None for features.
        resize: whether images of another size are resized. Otherwise they are refused.
        features: the names of the columns, in the order of the inputs.
        target_mean: the mean of the training targets of a regression. The model learns (y − mean)/std.
        target_std: the standard deviation of the training targets of a regression.
        ignore: the value of mask pixels that do not count.
        window: the sides of the windows that the model sees of larger images; it then equals ``size``, and images may
            have any size. None if the model sees whole images.
        spacing: the distance of two voxels along each axis in millimetres, for scans that know it.
        resample: whether scans of another spacing are brought to it. Otherwise they are refused.
    """

    kind: Kind
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...] = ()
    size: Size | None = None
    resize: bool = False
    features: tuple[str, ...] = ()
    target_mean: tuple[float, ...] = ()
    target_std: tuple[float, ...] = ()
    ignore: int | None = None
    window: Size | None = None
    spacing: tuple[float, ...] | None = None
    resample: bool = False

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UnknownName.of("kind", self.kind, get_args(Kind))
        for mean, std in ((self.mean, self.std), (self.target_mean, self.target_std)):
            if len(mean) != len(std) or not all(map(math.isfinite, (*mean, *std))) or min(std, default=1) <= 0:
                raise InputError(f"need as many finite means as positive deviations, got {mean} and {std}")
        if (self.size is None) != bool(self.features):
            raise InputError("a preparation has either a size of images or names of features; give one of them")
        if self.size is not None and not _is_possible(self.size):
            raise InputError(
                "size must be two or three sides of images or volumes, of at most "
                f"{MOST_PIXELS} pixels together, got {self.size}"
            )

        if self.window is not None and self.window != self.size:
            raise InputError(f"the model sees windows {self.window}, so its size must be the same, got {self.size}")
        if self.spacing is not None and (len(self.spacing) != len(self.size or ()) or not _are_distances(self.spacing)):
            raise InputError(f"spacing must be a positive number for each side of {self.size}, got {self.spacing}")

    @property
    def outputs(self) -> int:
        """How many numbers a model returns for each input or pixel.

        It is one for each class or label. A regression has two for each target: a mean and a log-variance.
        """
        return 2 * len(self.target_mean) or len(self.classes)

    @property
    def shape(self) -> dict[str, Any]:
        """What a model must know about the data, as arguments of `leanbayes.lab.models.model_named`."""
        if self.size is None:
            return {"in_features": len(self.mean), "classes": self.outputs}
        numbers = len(self.mean) * math.prod(self.size)
        return {"in_channels": len(self.mean), "size": self.size, "in_features": numbers, "classes": self.outputs}

    def standardise(self, values: Tensor) -> Tensor:
        """Return (values − mean)/std in float32, for one input or a batch."""
        x = values / 255 if values.dtype == torch.uint8 else values
        x = x if x.is_floating_point() else x.float()
        shape = (-1, *(1 for _ in self.size or ()))
        mean, std = (torch.tensor(numbers, dtype=x.dtype).view(shape) for numbers in (self.mean, self.std))
        return ((x - mean) / std).float()

    def original(self, x: Tensor) -> Tensor:
        """Return the values of one standardised input, which `standardise` takes back; bytes are numbers in [0, 1]."""
        shape = (-1, *(1 for _ in self.size or ()))
        mean, std = (
            torch.tensor(numbers, dtype=x.dtype, device=x.device).view(shape) for numbers in (self.mean, self.std)
        )
        return x * std + mean

    def in_units(self, prediction: Prediction) -> Prediction:
        """Return the prediction of a regression in the unit of the target. Other predictions come back unchanged."""
        if not self.target_mean:
            return prediction
        mean, std = self._target_scale(prediction.mean)
        samples = None if prediction.samples is None else prediction.samples * std + mean
        variances = {name: getattr(prediction, name) * std**2 for name in ("total", "aleatoric", "epistemic")}
        return dataclasses.replace(prediction, mean=prediction.mean * std + mean, samples=samples, **variances)

    def targets_in_units(self, targets: Tensor) -> Tensor:
        """Return the standardised targets of a regression in their unit. Other targets come back unchanged."""
        if not self.target_mean:
            return targets
        mean, std = self._target_scale(targets)
        return targets * std + mean

    def _target_scale(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the deviation of the targets, with the dtype and the device of ``like``."""
        mean, std = (
            torch.tensor(numbers, dtype=like.dtype, device=like.device)
            for numbers in (self.target_mean, self.target_std)
        )
        return mean, std

    def inputs(self, path: Path | str) -> Iterator[tuple[str, Tensor]]:
        """Yield the names and the prepared inputs of an image, a folder of images, an .npz file or a CSV file.

        An image has the name of its file, and a row the name of its index from 0. An .npz file holds the inputs in an
        array x, or in its only array. Columns of a CSV file that are no features are left out.
        """
        path = Path(path)
        if not path.exists():
            raise FileError(f"there is no file or folder {path}; check the path")
        suffix = path.suffix.lower()
        if self.size is None or (suffix == ".npz" and path.is_file()):
            return self._rows(self.table(path))
        files = image_files(path) if path.is_dir() else [path]
        if not files:
            raise InputError(f"{path} has no images ({' '.join(sorted(SUFFIXES))}); give a folder that has some")
        if path.is_file() and suffix not in SUFFIXES:
            raise InputError(f"the model takes images; give an image, a folder of them or an .npz, not {path}")
        return self._images(files, path if path.is_dir() else path.parent)

    def table(self, path: Path) -> Tensor:
        """Return the rows of an .npz or a CSV file, as numbers that are not standardised."""
        if path.suffix.lower() == ".npz" and path.is_file():
            return self._from_npz(path)
        if path.suffix.lower() != ".csv":
            raise InputError(f"the model takes {len(self.features)} features; give a .csv or an .npz, not {path}")
        table = read_csv(path)
        return torch.tensor([table.numbers(name) for name in self.features], dtype=torch.float64).T

    def picture(self, image: Path | HeldImage) -> Tensor:
        """Return an image as the model takes it; one of another size is resized or refused."""
        pixels = read_image(image, len(self.mean), self.size if self.resize else None)
        if self.window is None and pixels.shape[1:] != self.size:
            raise InputError(f"image {image} is {_by(pixels.shape[1:])}, but the model takes {_by(self.size or ())}")
        return self.standardise(pixels)

    def array(self, values: NDArray[Any], what: str) -> Tensor:
        """Return one array of numbers as the model takes it; one of another shape is refused."""
        shape = (len(self.mean), *(self.size or ()))
        fits = values.shape == shape if self.window is None else values.shape[:1] == shape[:1]
        if not fits or values.dtype.kind not in "uif" or not np.isfinite(values).all():
            raise InputError(
                f"{what} has shape {values.shape} of {values.dtype}; the model takes finite numbers of shape {shape}"
            )
        return self.standardise(torch.from_numpy(np.ascontiguousarray(values)))

    def to_json(self) -> dict[str, Any]:
        """Return the fields as numbers, texts and lists, which JSON can hold."""
        fields = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Preparation":
        """Build a preparation from what `to_json` returned."""
        try:
            arguments: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
            }
            return cls(**arguments)
        except (TypeError, AttributeError) as error:
            raise ForeignFile(f"this is no preparation of LeanBayes: {error}; save the model again") from error

    def _from_npz(self, path: Path) -> Tensor:
        arrays = load_npz(path)
        name = "x" if "x" in arrays or len(arrays) != 1 else next(iter(arrays))
        if name not in arrays:
            raise InputError(f"{path} holds {sorted(arrays)}; name the array of inputs x")
        volumes = len(self.size or ()) == 3
        values = as_inputs(arrays[name], f"array {name!r} of {path}", volumes and arrays[name].ndim == 4)
        shape = (len(self.mean), *(self.size or ()))
        fits = values.shape[1:] == shape
        if self.window is not None:  # images may have any size
            fits = values.shape[1] == shape[0] and values.dim() == 1 + len(shape)
        if not fits or not len(values):
            raise InputError(f"inputs of {path} have shape {tuple(values.shape)}, but the model takes (N, *{shape})")
        return values

    def _rows(self, values: Tensor) -> Iterator[tuple[str, Tensor]]:
        return ((str(index), self.standardise(row)) for index, row in enumerate(values))

    def _images(self, files: list[Path], top: Path) -> Iterator[tuple[str, Tensor]]:
        for file in files:
            yield file.relative_to(top).as_posix(), self.picture(file)


def statistics(batches: Iterable[Tensor]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Compute the mean and the standard deviation of each channel or feature, which lie along axis 1, in float64.

    The batches are merged one by one (Chan et al. 1979). For n numbers with mean m and sum of squared deviations s, and
    b more with mean m + δ and sum s_b: m' = m + δ·b/(n+b) and s' = s + s_b + δ²·nb/(n+b). A deviation of zero becomes
    one. Bytes count as numbers in [0, 1].

    >>> statistics([torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0]])])
    ((3.0,), (1.632993161855452,))
    """
    count, mean, squares = 0, torch.zeros(()), torch.zeros(())
    for batch in batches:
        values = (batch / 255.0 if batch.dtype == torch.uint8 else batch).double().transpose(0, 1).flatten(1)
        variance, middle = torch.var_mean(values, dim=1, correction=0)
        added = values.shape[1]
        delta = middle - mean
        squares = squares + variance * added + delta.square() * (count * added / (count + added))
        mean = mean + delta * (added / (count + added))
        count += added
    std = (squares / count).sqrt()
    std = torch.where(std > 1e-12 * mean.abs(), std, 1.0)
    return tuple(mean.tolist()), tuple(std.tolist())


def _by(size: Iterable[int]) -> str:
    return "x".join(map(str, size))


def _is_possible(size: Size) -> bool:
    """Return whether a size, which may come from a file, is one that an image can have."""
    whole = len(size) in (2, 3) and all(isinstance(side, int) and not isinstance(side, bool) for side in size)
    return whole and min(size) > 0 and math.prod(size) <= MOST_PIXELS


def _are_distances(spacing: tuple[float, ...]) -> bool:
    return all(isinstance(step, float | int) and math.isfinite(step) and step > 0 for step in spacing)
