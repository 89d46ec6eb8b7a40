"""Arrays from .npz files and from files in MNIST's idx format.

Users of MedMNIST, Keras and scikit-learn give the arrays of an .npz file different names, all of which are known here.
"""

import gzip
import math
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leanbayes.errors import FileError, InputError
from leanbayes.lab.data.expansion import check_npz, largest_expansion
from leanbayes.lab.data.splits import SPLITS

__all__ = ["array_sets", "as_inputs", "data_dir", "load_npz", "read_idx"]

Array = np.ndarray[Any, Any]
_MOST_AXES = 8  # MNIST's own files have one or three


def data_dir() -> Path:
    """Return the data directory: the environment variable LEANBAYES_DATA, or ``data`` in the working directory."""
    return Path(os.environ.get("LEANBAYES_DATA") or "data")


def load_npz(path: Path) -> dict[str, Array]:
    """Read every array of an .npz file.

    Python objects in the file are refused, because loading them would run code. So are files that unpack to far more
    than their own size (see `leanbayes.lab.data.expansion`).
    """
    arrays: dict[str, Array] = {}
    name = ""
    try:
        if zipfile.is_zipfile(path):
            check_npz(path)
        with path.open("rb") as stream:  # numpy would leave a damaged file open
            file = np.load(stream, allow_pickle=False, mmap_mode=None)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise FileError(f"{path} holds one array without a name; save it with numpy.savez(path, x=...)")
            for name in file.files:
                arrays[name] = file[name]
    except FileError:
        raise
    except Exception as error:  # zip, zlib, numpy and the system each raise their own errors
        if name and "allow_pickle" in str(error):
            raise FileError(
                f"array {name!r} of {path} holds pickled objects, which are never loaded; save plain arrays"
            ) from error
        raise FileError(f"cannot read {path}: it is damaged or no .npz file; copy or save it again") from error
    return {name: array for name, array in arrays.items() if isinstance(array, np.ndarray)}


def array_sets(arrays: Mapping[str, Array], path: Path) -> dict[str, tuple[Array, Array]]:
    """Return the inputs and the targets of each set that an .npz file holds.

    The arrays are called x_train, y_train and so on, or train_images, train_labels and so on. Arrays that are only
    called x and y, or images and labels, are the training set.
    """
    lower = {name.lower(): name for name in arrays}
    sets: dict[str, tuple[Array, Array]] = {}
    for split, words in SPLITS.items():
        names = [(f"x_{word}", f"y_{word}") for word in words] + [
            (f"{word}_images", f"{word}_labels") for word in words
        ]
        names += [("x", "y"), ("images", "labels")] if split == "train" else []
        for x, y in names:
            if x in lower and y in lower and split not in sets:
                sets[split] = arrays[lower[x]], arrays[lower[y]]
                _check(path, lower[x], *sets[split], lower[y])
            elif (x in lower) != (y in lower) and split not in sets:
                present, missing = (x, y) if x in lower else (y, x)
                raise InputError(f"{path} has {lower[present]!r} but no {missing!r}; save both")
    if "train" not in sets:
        raise InputError(
            f"{path} holds {sorted(arrays)}; name its arrays x and y, or x_train, y_train, x_val, y_val, x_test, y_test"
        )
    shapes = {split: inputs.shape[1:] for split, (inputs, _) in sets.items()}
    for split, shape in shapes.items():
        if shape != shapes["train"]:
            raise InputError(
                f"inputs in {path} have shape {shape} for {split}, but {shapes['train']} for training; make them alike"
            )
    return sets


def as_inputs(x: Array, what: str, volumes: bool = False) -> Tensor:
    """Convert an array of inputs to a tensor.

    Features become (N, F) in float64, and images become (N, channels, height, width). Images of bytes stay bytes; all
    others become float32, and 16-bit integers become numbers in [0, 1]. If an array of images has four axes, the
    smaller of the axes 1 and 3 holds the channels. Volumes become (N, channels, depth, height, width).

    Args:
        x: the array.
        what: what the array is called in errors.
        volumes: whether an array of four axes holds volumes (N, D, H, W). An array of five, (N, C, D, H, W), always
            does.
    """
    if x.dtype.kind not in "buif":
        raise InputError(f"{what} must hold numbers, got {x.dtype}; save numbers")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        row = int(np.argwhere(~np.isfinite(x))[0][0])
        raise InputError(f"{what} has NaN or infinite values, first in row {row}; fill them or remove the row")
    if x.ndim in (1, 2):
        return torch.from_numpy(x.astype(np.float64).reshape(len(x), -1))
    if x.ndim == 4 and volumes:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[3] <= x.shape[1]:
        x = x.transpose(0, 3, 1, 2)
    elif x.ndim == 3:
        x = x[:, None]
    elif x.ndim not in (4, 5):
        raise InputError(
            f"{what} must be (N, features), (N, H, W), (N, H, W, C), (N, C, H, W) or (N, C, D, H, W), got {x.shape}"
        )
    if x.dtype != np.uint8:
        x = x.astype(np.float32) / (65535 if x.dtype == np.uint16 else 1)
    return torch.from_numpy(np.ascontiguousarray(x))


def read_idx(path: Path) -> Array:
    """Read an array of bytes in MNIST's idx format, gzipped (``path`` ends in .gz) or plain.

    The format has two zero bytes, the type (8 means bytes), the number of axes, the length of each axis as a 32-bit
    big-endian number, and then the data.
    """
    plain = path.with_suffix("")
    try:
        source = plain if plain.is_file() else path
        limit = largest_expansion(source.stat().st_size)
        with gzip.open(path) if source is path else plain.open("rb") as file:
            header = file.read(4)
            axes = header[3] if len(header) == 4 else 0
            lengths = file.read(4 * axes)
            if axes > _MOST_AXES:
                raise FileError(f"{path} is damaged or not in MNIST's idx format; copy it again")
            shape = [int.from_bytes(lengths[start : start + 4], "big") for start in range(0, len(lengths), 4)]
            size = math.prod(shape)
            if size > limit:
                raise FileError(
                    f"{path} claims {size} bytes, more than a file of its size may unpack to; copy it again"
                )
            data = file.read(size + 1)
    except FileError:
        raise
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(f"cannot read {path}: {error}; copy it again from where MNIST is published") from error
    if header[:3] != b"\0\0\x08" or len(shape) != axes or len(data) != size:
        raise FileError(f"{path} is damaged or not in MNIST's idx format; copy it again")
    return np.frombuffer(data, np.uint8).reshape(shape)


def _check(path: Path, x_name: str, x: Array, y: Array, y_name: str) -> None:
    if not x.ndim or not y.ndim or len(x) != len(y):
        raise InputError(
            f"{path} has {x_name} of shape {x.shape} but {y_name} of shape {y.shape}; save one y for each x"
        )
    if not x.size:
        raise InputError(f"{x_name} of {path} is empty; give at least one example")
