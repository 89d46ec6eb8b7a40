"""What is to be predicted: arrays of targets become class indices, labels or standardised numbers."""

from collections.abc import Mapping
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


@dataclass(frozen=True)
class Targets:
    """Targets by set, and what they stand for."""

    sets: dict[str, Tensor]
    classes: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


def one_axis(y: Array, kind: Kind | None) -> Array:
    """Targets (N, 1) as (N), and one-hot rows as class numbers where classes are asked for."""
    if y.ndim == 2 and y.shape[1] == 1:
        return y[:, 0]
    if kind == "classes" and y.ndim == 2 and np.isin(y, (0, 1)).all() and (y.sum(1) == 1).all():
        return np.asarray(y.argmax(1))
    return y


def kind_of(y: Array) -> Kind:
    """What targets are by their look: (N, H, W) pixels, (N, L) of 0 and 1 labels, (N) of integers or texts classes.

    >>> kind_of(np.array([0, 1])), kind_of(np.array([0.5, 1])), kind_of(np.eye(3))
    ('classes', 'regression', 'labels')
    """
    if y.ndim == 3:
        return "pixels"
    if y.ndim == 2 and np.isin(y, (0, 1)).all():
        return "labels"
    return "classes" if y.ndim == 1 and y.dtype.kind in "biuU" else "regression"


def class_values(y: Array, path: Path) -> list[Any]:
    """Training targets, of which there must be at least two kinds and far fewer than examples."""
    values: list[Any] = y.tolist()
    known = sorted(set(values))
    if len(known) < 2:
        raise InputError(f"the training targets of {path} have one class only ({known}); two or more are needed")
    if len(known) > max(20, len(values) / 2):
        raise InputError(
            f"the training targets of {path} have {len(known)} different values in {len(values)} examples, "
            'too many for classes; for numbers give kind="regression"'
        )
    return values


def targets_of(kind: Kind, sets: Mapping[str, Array], path: Path, size: Size | None, ignore: int | None) -> Targets:
    """Check the targets of every set and code them; classes and scales come from the training set alone."""
    for name, y in sets.items():
        _check(kind, y, f"the {name} targets of {path}", size)
    if kind == "classes":
        return _classes(sets, path)
    if kind == "labels":
        columns = {name: torch.from_numpy(y.reshape(len(y), -1).astype(np.float32)) for name, y in sets.items()}
        return Targets(columns, tuple(map(str, range(columns["train"].shape[1]))))
    if kind == "pixels":
        found = {name: dict.fromkeys(np.unique(y).tolist(), path) for name, y in sets.items()}
        count, yes_or_no = label_count(found["train"], list(found.values()), ignore)
        pixels = {name: torch.from_numpy(y.astype(np.int64)) for name, y in sets.items()}
        if not yes_or_no:
            return Targets(pixels, tuple(map(str, range(count))))
        pixels = {name: y.masked_fill(y == 255, 1) for name, y in pixels.items()}
        return Targets(pixels, ("background", "foreground"))
    numbers = {name: torch.from_numpy(y.reshape(len(y), -1).astype(np.float64)) for name, y in sets.items()}
    mean, std = statistics([numbers["train"]])
    middle, scale = (torch.tensor(values, dtype=torch.float64) for values in (mean, std))
    return Targets({name: ((y - middle) / scale).float() for name, y in numbers.items()}, (), mean, std)


def _classes(sets: Mapping[str, Array], path: Path) -> Targets:
    values = {name: y.tolist() for name, y in sets.items()}
    known = sorted(set(values["train"]))
    for name, some in values.items():
        for value in sorted(set(some) - set(known)):
            raise InputError(f"the {name} targets of {path} have the class {value!r}, which is unseen in training")
    index = {value: place for place, value in enumerate(known)}
    coded = {name: torch.tensor([index[value] for value in some]) for name, some in values.items()}
    return Targets(coded, tuple(map(str, known)))


def _check(kind: Kind, y: Array, what: str, size: Size | None) -> None:
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        row = int(np.argwhere(~np.isfinite(y))[0][0])
        raise InputError(f"{what} have NaN or infinite values, first in row {row}; fill them or remove the row")
    if y.dtype.kind not in ("biufU" if kind == "classes" else "biuf"):
        raise InputError(f"{what} must be numbers for kind={kind!r}, got {y.dtype}")
    if kind == "classes" and y.ndim != 1:
        raise ShapeMismatch(f"{what} must have shape (N) for classes, or one-hot rows, got {y.shape}")
    if kind == "labels" and not (y.ndim in (1, 2) and np.isin(y, (0, 1)).all()):
        raise InputError(f"{what} must be 0 or 1, of shape (N, labels), got {y.dtype} of shape {y.shape}")
    if kind == "pixels" and (y.dtype.kind not in "biu" or y.shape[1:] != size):
        raise ShapeMismatch(f"{what} must be integers of shape (N, *{size}) like the images, got {y.dtype} {y.shape}")
    if kind == "regression" and y.ndim not in (1, 2):
        raise ShapeMismatch(f"{what} must have shape (N) or (N, outputs), got {y.shape}")
