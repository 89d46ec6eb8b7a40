"""How inputs are prepared: stated once, saved beside a model, and the same for all that it is ever asked about."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from leanbayes.errors import FileError, ForeignFile, InputError, UnknownName
from leanbayes.lab.data.arrays import as_inputs, load_npz
from leanbayes.lab.data.images import SUFFIXES, Size, image_files, read_image
from leanbayes.lab.data.tables import read_csv
from leanbayes.prediction import Prediction

__all__ = ["Kind", "Preparation", "statistics"]

Kind = Literal["classes", "labels", "pixels", "regression"]
"""One class of several; several independent labels; a class for each pixel; numbers."""


@dataclass(frozen=True)
class Preparation:
    """How a file becomes an input, and what the outputs stand for. Plain numbers and texts: JSON holds it.

    Args:
        kind: what is predicted.
        mean: of the training inputs, one number for each channel or feature; bytes count as numbers in [0, 1].
        std: their standard deviations, by which inputs are divided.
        classes: names of classes or labels, in the order of the outputs.
        size: height and width of images; None for features.
        resize: whether images of another size are brought to it, or refused.
        features: names of columns, in the order of the inputs.
        target_mean, target_std: of the training targets of a regression, which is on the scale (y − mean)/std.
        ignore: the value of pixels that do not count.
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

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UnknownName.of("kind", self.kind, get_args(Kind))
        for mean, std in ((self.mean, self.std), (self.target_mean, self.target_std)):
            if len(mean) != len(std) or not all(map(math.isfinite, (*mean, *std))) or min(std, default=1) <= 0:
                raise InputError(f"need as many finite means as positive deviations, got {mean} and {std}")
        if (self.size is None) != bool(self.features):
            raise InputError("a preparation has either a size of images or names of features")

    @property
    def outputs(self) -> int:
        """How many numbers a model gives for each input, or pixel: for a regression a mean and a log-variance each."""
        return 2 * len(self.target_mean) if self.kind == "regression" else len(self.classes)

    @property
    def shape(self) -> dict[str, Any]:
        """What a model must know of the data: the arguments of `leanbayes.lab.models.model_named`."""
        if self.size is None:
            return {"in_features": len(self.mean), "classes": self.outputs}
        numbers = len(self.mean) * self.size[0] * self.size[1]
        return {"in_channels": len(self.mean), "size": self.size, "in_features": numbers, "classes": self.outputs}

    def standardise(self, values: Tensor) -> Tensor:
        """(values − mean)/std in float32, of one input or a batch."""
        x = values / 255 if values.dtype == torch.uint8 else values
        shape = (-1,) if self.size is None else (-1, 1, 1)
        mean, std = (torch.tensor(numbers, dtype=x.dtype).view(shape) for numbers in (self.mean, self.std))
        return ((x - mean) / std).float()

    def in_units(self, prediction: Prediction) -> Prediction:
        """A regression's prediction in the units of the target; any other as it is."""
        if self.kind != "regression":
            return prediction
        like = prediction.mean
        mean, std = (torch.tensor(v, dtype=like.dtype, device=like.device) for v in (self.target_mean, self.target_std))
        samples = None if prediction.samples is None else prediction.samples * std + mean
        variances = {name: getattr(prediction, name) * std**2 for name in ("total", "aleatoric", "epistemic")}
        return dataclasses.replace(prediction, mean=like * std + mean, samples=samples, **variances)

    def inputs(self, path: Path | str) -> Iterator[tuple[str, Tensor]]:
        """Names and prepared inputs of an image, a folder of images, an .npz (array x, or its only one) or a CSV.

        Images are named by their files, rows by their numbers from 0. What a CSV has besides the features is left out.
        """
        path = Path(path)
        if not path.exists():
            raise FileError(f"there is no file or folder {path}")
        suffix = path.suffix.lower()
        if suffix == ".npz" and path.is_file():
            return self._rows(self._from_npz(path))
        if self.size is None:
            if suffix != ".csv":
                raise InputError(f"the model takes {len(self.features)} features; give a .csv or an .npz, not {path}")
            table = read_csv(path)
            columns = [table.numbers(name) for name in self.features]
            return self._rows(torch.tensor(columns, dtype=torch.float64).T)
        files = image_files(path) if path.is_dir() else [path]
        if not files:
            raise InputError(f"{path} has no images ({' '.join(sorted(SUFFIXES))})")
        if path.is_file() and suffix not in SUFFIXES:
            raise InputError(f"the model takes images; give an image, a folder of them or an .npz, not {path}")
        return self._images(files, path if path.is_dir() else path.parent)

    def to_json(self) -> dict[str, Any]:
        """Numbers, texts and lists only."""
        fields = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Preparation":
        """What ``to_json`` gave."""
        known: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
        }
        try:
            return cls(**known)
        except TypeError as error:
            raise ForeignFile(f"this is no preparation of LeanBayes: {error}") from error

    def _from_npz(self, path: Path) -> Tensor:
        arrays = load_npz(path)
        name = "x" if "x" in arrays or len(arrays) != 1 else next(iter(arrays))
        if name not in arrays:
            raise InputError(f"{path} holds {sorted(arrays)}; name the array of inputs x")
        values = as_inputs(arrays[name], f"array {name!r} of {path}")
        shape = (len(self.mean), *(self.size or ()))
        if values.shape[1:] != shape or not len(values):
            raise InputError(f"inputs of {path} have shape {tuple(values.shape)}, but the model takes (N, *{shape})")
        return values

    def _rows(self, values: Tensor) -> Iterator[tuple[str, Tensor]]:
        return ((str(place), self.standardise(row)) for place, row in enumerate(values))

    def _images(self, files: list[Path], top: Path) -> Iterator[tuple[str, Tensor]]:
        for file in files:
            pixels = read_image(file, len(self.mean), self.size if self.resize else None)
            if pixels.shape[1:] != self.size:
                raise InputError(f"image {file} is {_by(pixels.shape[1:])}, but the model takes {_by(self.size or ())}")
            yield file.relative_to(top).as_posix(), self.standardise(pixels)


def statistics(batches: Iterable[Tensor]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation along axis 1 of all batches together, in float64 (Chan et al. 1979).

    With n numbers of mean m and squared deviations s, and b more: m' = m + δ·b/(n+b), s' = s + s_b + δ²·nb/(n+b).
    A deviation of zero becomes one.

    >>> statistics([torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0]])])
    ((3.0,), (1.632993161855452,))
    """
    count, mean, squares = 0, torch.zeros(()), torch.zeros(())
    for batch in batches:
        values = (batch / 255.0 if batch.dtype == torch.uint8 else batch).double().transpose(0, 1).flatten(1)
        variance, middle = torch.var_mean(values, dim=1, correction=0)
        more = values.shape[1]
        apart = middle - mean
        squares = squares + variance * more + apart.square() * (count * more / (count + more))
        mean = mean + apart * (more / (count + more))
        count += more
    std = (squares / count).sqrt()
    std = torch.where(std > 1e-12 * mean.abs(), std, 1.0)
    return tuple(mean.tolist()), tuple(std.tolist())


def _by(size: Iterable[int]) -> str:
    return "x".join(map(str, size))
