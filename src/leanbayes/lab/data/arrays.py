"""Arrays in an .npz file, under the names that MedMNIST, Keras and scikit-learn users give them, and MNIST's idx."""

import gzip
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leanbayes.errors import FileError, InputError
from leanbayes.lab.data.splits import SPLITS

__all__ = ["array_sets", "as_inputs", "data_dir", "load_npz", "read_idx"]

Array = np.ndarray[Any, Any]


def data_dir() -> Path:
    """Where data sets are: the environment variable LEANBAYES_DATA, or ``data`` in the working directory."""
    return Path(os.environ.get("LEANBAYES_DATA") or "data")


def load_npz(path: Path) -> dict[str, Array]:
    """Every array of an .npz file. Python objects in it are refused, for to load them is to run them."""
    found: dict[str, Array] = {}
    name = ""
    try:
        with path.open("rb") as opened:  # numpy leaves a damaged file open
            file = np.load(opened, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise FileError(f"{path} holds one array without a name; save it with numpy.savez(path, x=...)")
            for name in file.files:
                found[name] = file[name]
    except FileError:
        raise
    except Exception as error:  # zip, zlib, numpy and the system each have their own
        if name and "allow_pickle" in str(error):
            raise FileError(
                f"array {name!r} of {path} holds pickled objects, which are never loaded; save plain arrays"
            ) from error
        raise FileError(f"cannot read {path}: it is damaged or no .npz file; copy or save it again") from error
    return {name: array for name, array in found.items() if isinstance(array, np.ndarray)}


def array_sets(arrays: Mapping[str, Array], path: Path) -> dict[str, tuple[Array, Array]]:
    """Inputs and targets by set: x_train, y_train, ..., train_images, train_labels, ..., or x, y alone as "train"."""
    lower = {name.lower(): name for name in arrays}
    found: dict[str, tuple[Array, Array]] = {}
    for split, words in SPLITS.items():
        names = [(f"x_{word}", f"y_{word}") for word in words] + [
            (f"{word}_images", f"{word}_labels") for word in words
        ]
        names += [("x", "y"), ("images", "labels")] if split == "train" else []
        for x, y in names:
            if x in lower and y in lower and split not in found:
                found[split] = arrays[lower[x]], arrays[lower[y]]
                _check(path, lower[x], *found[split], lower[y])
            elif (x in lower) != (y in lower) and split not in found:
                there, missing = (x, y) if x in lower else (y, x)
                raise InputError(f"{path} has {lower[there]!r} but no {missing!r}; save both")
    if "train" not in found:
        raise InputError(
            f"{path} holds {sorted(arrays)}; name its arrays x and y, or x_train, y_train, x_val, y_val, x_test, y_test"
        )
    shapes = {split: inputs.shape[1:] for split, (inputs, _) in found.items()}
    for split, shape in shapes.items():
        if shape != shapes["train"]:
            raise InputError(f"inputs in {path} have shape {shape} for {split}, but {shapes['train']} for training")
    return found


def as_inputs(x: Array, what: str) -> Tensor:
    """Features (N, F) in float64, or images (N, channels, height, width) as bytes or in float32.

    Of axes 1 and 3 of four, the smaller holds the channels; 16-bit integers become numbers in [0, 1].
    """
    if x.dtype.kind not in "buif":
        raise InputError(f"{what} must hold numbers, got {x.dtype}")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        row = int(np.argwhere(~np.isfinite(x))[0][0])
        raise InputError(f"{what} has NaN or infinite values, first in row {row}; fill them or remove the row")
    if x.ndim in (1, 2):
        return torch.from_numpy(x.astype(np.float64).reshape(len(x), -1))
    if x.ndim == 4 and x.shape[3] <= x.shape[1]:
        x = x.transpose(0, 3, 1, 2)
    elif x.ndim == 3:
        x = x[:, None]
    elif x.ndim != 4:
        raise InputError(f"{what} must be (N, features), (N, H, W), (N, H, W, C) or (N, C, H, W), got {x.shape}")
    if x.dtype != np.uint8:
        x = x.astype(np.float32) / (65535 if x.dtype == np.uint16 else 1)
    return torch.from_numpy(np.ascontiguousarray(x))


def read_idx(path: Path) -> Array:
    """An array of bytes in MNIST's idx format, gzipped (``path`` ends in .gz) or plain.

    Two zero bytes, the type (8: bytes), the number of axes, each axis as a 32-bit big-endian number, then the data.
    """
    plain = path.with_suffix("")
    try:
        data = plain.read_bytes() if plain.is_file() else gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(f"cannot read {path}: {error}; copy it again from where MNIST is published") from error
    start = 4 + 4 * data[3] if len(data) > 3 else 0
    shape = [int.from_bytes(data[place : place + 4], "big") for place in range(4, start, 4)]
    if data[:3] != b"\0\0\x08" or len(data) != start + int(np.prod(shape)):
        raise FileError(f"{path} is damaged or not in MNIST's idx format; copy it again")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _check(path: Path, x_name: str, x: Array, y: Array, y_name: str) -> None:
    if not x.ndim or not y.ndim or len(x) != len(y):
        raise InputError(f"{path} has {x_name} of shape {x.shape} but {y_name} of shape {y.shape}; one y for each x")
    if not x.size:
        raise InputError(f"{x_name} of {path} is empty")
