"""Street View House Numbers (Netzer et al. 2011): the cropped digits, from the official MATLAB files."""

from functools import partial
from pathlib import Path

import numpy as np

from leanbayes.errors import FileError
from leanbayes.lab.data.arrays import Array
from leanbayes.lab.data.expansion import check_mat
from leanbayes.lab.data.named import DataSet, Origin, Remote
from leanbayes.lab.data.source import Source, from_arrays

__all__ = ["svhn"]

_URL = "http://ufldl.stanford.edu/housenumbers/"
_FILES = {"train": "train_32x32.mat", "test": "test_32x32.mat"}
_SUMS = {"train": "e26dedcc434d2e4c54c9b2d4a06d8373", "test": "eb5a983be6a315427106f1b164d9cef3"}
_REMOTES = {part: Remote(_URL + file, _SUMS[part], (f"SVHN/{file}",)) for part, file in _FILES.items()}
_ORIGIN = Origin("SVHN", _URL, tuple(_REMOTES.values()))


def svhn(folder: Path | str | None = None, seed: int = 0, *, only_test: bool = False) -> Source:
    """Read SVHN: 73,257 digits for training and validation, and 26,032 for the test.

    Args:
        folder: the data directory, by default `data_dir()`.
        seed: decides which 15 % of the training digits are for validation.
        only_test: divide the test file into the three sets, for users who do not have the training file.
    """
    parts = ("test",) if only_test else ("train", "test")
    paths = {part: _ORIGIN.find(folder, f"SVHN/{_FILES[part]}", _FILES[part]) for part in parts}
    sets = {"train" if only_test else part: _digits(path) for part, path in paths.items()}
    return from_arrays(paths["test"], sets, "classes", seed=seed)


def _digits(path: Path) -> tuple[Array, Array]:
    """Return images (N, 32, 32, 3) and digits (N). In the file the images lie along the last axis, and 10 means 0."""
    from scipy.io import loadmat

    try:
        check_mat(path)
        arrays = loadmat(path, variable_names=("X", "y"))  # reads numbers and texts, and runs no code
        x, y = np.asarray(arrays["X"]), np.asarray(arrays["y"])
    except FileError:
        raise
    except Exception as error:  # scipy's reader raises whatever a damaged file leads it to
        raise FileError(f"cannot read {path}: it is damaged or no file of SVHN; copy it again") from error
    if x.dtype != np.uint8 or x.shape[:3] != (32, 32, 3) or x.ndim != 4 or y.shape != (x.shape[3], 1):
        raise FileError(f"{path} should hold X (32, 32, 3, N) and y (N, 1), got {x.shape} {x.dtype} and {y.shape}")
    if y.dtype.kind not in "ui" or not y.size or y.min() < 0 or y.max() > 10:
        raise FileError(f"{path} should hold the digits 1 to 10 in y, where 10 stands for 0")
    return x.transpose(3, 0, 1, 2), y[:, 0].astype(np.int64) % 10


SETS = (
    DataSet("svhn", svhn, _ORIGIN),
    DataSet("svhn-test", partial(svhn, only_test=True), Origin("SVHN", _URL, (_REMOTES["test"],))),
)
