"""Targets: arrays of what is to be predicted become class indices, labels or standardised numbers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leanbayes.errors import InputError, ShapeMismatch
from leanbayes.lab.data.arrays import Array
from leanbayes.lab.data.images import Size
from leanbayes.lab.data.masks import label_count
from leanbayes.lab.data.preparation import Kind, statistics

__all__ = ["Targets", "class_values", "kind_of", "one_axis", "targets_of"]

Sets = Mapping[str, Array]


@dataclass(frozen=True)
class Targets:
    """Targets as networks learn them.

    Args:
        sets: the targets of "train", "validation" and "test".
        classes: the names of the classes or labels.
        mean: the mean of the training targets of a regression, one number for each output.
        std: their standard deviations.
    """

    sets: dict[str, Tensor]
    classes: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


def one_axis(y: Array, kind: Kind | None) -> Array:
    """Return targets (N, 1) as (N) and, if classes are asked for, one-hot rows as class indices."""
    if y.ndim == 2 and y.shape[1] == 1:
        return y[:, 0]
    if kind == "classes" and y.ndim == 2 and np.isin(y, (0, 1)).all() and (y.sum(1) == 1).all():
        return np.asarray(y.argmax(1))
    return y


def kind_of(y: Array) -> Kind:
    """Guess the kind of data from an array of targets.

    Targets (N, H, W) or (N, D, H, W) are pixels, (N, L) of 0 and 1 are labels, and (N) of integers or texts are
    classes. All others are numbers.

    >>> kind_of(np.array([0, 1])), kind_of(np.array([0.5, 1])), kind_of(np.eye(3))
    ('classes', 'regression', 'labels')
    """
    if y.ndim >= 3:
        return "pixels"
    if y.ndim == 2 and np.isin(y, (0, 1)).all():
        return "labels"
    return "classes" if y.ndim == 1 and y.dtype.kind in "biuU" else "regression"


def class_values(y: Array, path: Path) -> list[Any]:
    """Return the class of each training target, and refuse targets of one class or of almost as many as examples."""
    values: list[Any] = y.tolist()
    classes = sorted(set(values))
    if len(classes) < 2:
        raise InputError(f"the training targets of {path} have one class only ({classes}); two or more are needed")
    if len(classes) > max(20, len(values) / 2):
        raise InputError(
            f"the training targets of {path} have {len(classes)} different values in {len(values)} examples, "
            'too many for classes; for numbers give kind="regression"'
        )
    return values


def targets_of(kind: Kind, sets: Sets, path: Path, size: Size | None, ignore: int | None) -> Targets:
    """Check the targets of all sets and convert them to what networks learn.

    The training set alone decides the classes, and the mean and deviation of numbers.

    Args:
        kind: what is predicted.
        sets: the targets of each set.
        path: the file that they come from, for errors.
        size: the height and width of the inputs, if they are images.
        ignore: the value of mask pixels that do not count.
    """
    encode, types = _ENCODERS[kind]
    for name, y in sets.items():
        what = f"the {name} targets of {path}"
        if y.dtype.kind == "f" and not np.isfinite(y).all():
            row = int(np.argwhere(~np.isfinite(y))[0][0])
            raise InputError(f"{what} have NaN or infinite values, first in row {row}; fill them or remove the row")
        if y.dtype.kind not in types:
            raise InputError(f"{what} must be numbers for kind={kind!r}, got {y.dtype}; choose another kind")
    return encode(sets, path, size, ignore)


def _classes(sets: Sets, path: Path, size: Size | None, ignore: int | None) -> Targets:  # noqa: ARG001
    for name, y in sets.items():
        if y.ndim != 1:
            raise ShapeMismatch(
                f"the {name} targets of {path} must have shape (N) for classes, or one-hot rows, got {y.shape}"
            )
    values = {name: y.tolist() for name, y in sets.items()}
    classes = sorted(set(values["train"]))
    for name, set_values in values.items():
        for value in sorted(set(set_values) - set(classes)):
            raise InputError(
                f"the {name} targets of {path} have the class {value!r}, which is unseen in training; "
                "remove it, or add examples of it to the training set"
            )
    index = {value: number for number, value in enumerate(classes)}
    encoded = {name: torch.tensor([index[value] for value in set_values]) for name, set_values in values.items()}
    return Targets(encoded, tuple(map(str, classes)))


def _labels(sets: Sets, path: Path, size: Size | None, ignore: int | None) -> Targets:  # noqa: ARG001
    for name, y in sets.items():
        if y.ndim not in (1, 2) or not np.isin(y, (0, 1)).all():
            raise InputError(
                f"the {name} targets of {path} must be 0 or 1, of shape (N, labels), got {y.dtype} of shape {y.shape}"
            )
    columns = {name: torch.from_numpy(y.reshape(len(y), -1).astype(np.float32)) for name, y in sets.items()}
    return Targets(columns, tuple(map(str, range(columns["train"].shape[1]))))


def _pixels(sets: Sets, path: Path, size: Size | None, ignore: int | None) -> Targets:
    for name, y in sets.items():
        if y.dtype.kind not in "biu" or y.shape[1:] != size:
            raise ShapeMismatch(
                f"the {name} targets of {path} must be integers of shape (N, *{size}) like the images, "
                f"got {y.dtype} {y.shape}"
            )
    values = {name: dict.fromkeys(np.unique(y).tolist(), path) for name, y in sets.items()}
    count, binary = label_count(values["train"], list(values.values()), ignore)
    pixels = {name: torch.from_numpy(y.astype(np.int64)) for name, y in sets.items()}
    if not binary:
        return Targets(pixels, tuple(map(str, range(count))))
    return Targets({name: y.masked_fill(y == 255, 1) for name, y in pixels.items()}, ("background", "foreground"))


def _numbers(sets: Sets, path: Path, size: Size | None, ignore: int | None) -> Targets:  # noqa: ARG001
    for name, y in sets.items():
        if y.ndim not in (1, 2):
            raise ShapeMismatch(f"the {name} targets of {path} must have shape (N) or (N, outputs), got {y.shape}")
    numbers = {name: torch.from_numpy(y.reshape(len(y), -1).astype(np.float64)) for name, y in sets.items()}
    mean, std = statistics([numbers["train"]])
    middle, scale = (torch.tensor(values, dtype=torch.float64) for values in (mean, std))
    return Targets({name: ((y - middle) / scale).float() for name, y in numbers.items()}, (), mean, std)


_ENCODERS: dict[Kind, tuple[Callable[[Sets, Path, Size | None, int | None], Targets], str]] = {
    "classes": (_classes, "biufU"),
    "labels": (_labels, "biuf"),
    "pixels": (_pixels, "biuf"),
    "regression": (_numbers, "biuf"),
}
"""For each kind of data, the function that checks and converts targets, and numpy's letters for the types allowed."""
