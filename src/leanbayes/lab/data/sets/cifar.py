"""CIFAR-10 (Krizhevsky 2009) in its binary layout. The Python layout is pickled, so it is never opened."""

from pathlib import Path

import numpy as np

from leanbayes.errors import FileError
from leanbayes.lab.data.arrays import Array
from leanbayes.lab.data.named import DataSet, Origin, Remote, with_classes
from leanbayes.lab.data.source import Source, from_arrays

__all__ = ["cifar10"]

_FOLDER = "cifar-10-batches-bin"
_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_FILES = {"train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test": ("test_batch.bin",)}
_RECORD = 1 + 3 * 32 * 32  # bytes: the class, then red, green and blue, row by row

_ORIGIN = Origin(
    "CIFAR-10 (binary version)",
    "https://www.cs.toronto.edu/~kriz/cifar.html",
    (
        Remote(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
            tuple(f"{_FOLDER}/{file}" for files in _FILES.values() for file in files),
        ),
    ),
)


def cifar10(folder: Path | str | None = None, seed: int = 0) -> Source:
    """Read CIFAR-10: 50,000 images for training and validation, and 10,000 for the test.

    Args:
        folder: the data directory, by default `data_dir()`.
        seed: decides which 15 % of the training images are for validation.
    """
    sets = {}
    for split, files in _FILES.items():
        records = np.concatenate([_records(_ORIGIN.find(folder, f"{_FOLDER}/{file}")) for file in files])
        sets[split] = records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]
    path = _ORIGIN.find(folder, _FOLDER)
    return with_classes(from_arrays(path, sets, "classes", seed=seed), _CLASSES)


def _records(path: Path) -> Array:
    try:
        data = np.fromfile(path, np.uint8)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error}; copy it again") from error
    if not data.size or data.size % _RECORD or data[::_RECORD].max() >= len(_CLASSES):
        raise FileError(f"{path} is damaged or no file of CIFAR-10's binary version; copy it again")
    return data.reshape(-1, _RECORD)


SETS = (DataSet("cifar10", cifar10, _ORIGIN),)
