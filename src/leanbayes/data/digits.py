"""Handwritten digits: scikit-learn's built-in set, with shifted ones beside it, and MNIST and its like from files."""

from functools import partial
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

from leanbayes.data.arrays import data_dir, read_idx
from leanbayes.data.source import Source, from_arrays
from leanbayes.data.splits import divide
from leanbayes.data.task import Task
from leanbayes.errors import FileError, InputError
from leanbayes.likelihood import Categorical
from leanbayes.models import model_named

__all__ = ["digits", "mnist"]

_KNOWN = 8
_VALIDATION, _TEST = 150, 993  # of 1443 images of known digits: about 300 are left to learn from


def digits(seed: int = 0) -> Task:
    """The digits 0 to 7 of scikit-learn's 8x8 images: about 300 to learn from, 150 to choose on, 1000 to test.

    ``shifted`` has the test digits "rotated" by 90°, and the digits 8 and 9, which are "unseen".
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise InputError("the digits come with scikit-learn: pip install 'leanbayes[demo]'") from error
    data = load_digits()
    images = torch.tensor(data.images / 16, dtype=torch.float32)[:, None]
    labels = torch.tensor(data.target)
    known = labels < _KNOWN
    x, y = images[known], labels[known]
    places = divide(y.tolist(), {"validation": _VALIDATION / len(y), "test": _TEST / len(y)}, seed)
    sets = {name: TensorDataset(x[some], y[some]) for name, some in places.items()}
    turned = torch.rot90(x[places["test"]], dims=(2, 3))
    return Task(
        "digits",
        **sets,
        model=partial(model_named, "small_cnn", in_channels=1, classes=_KNOWN, size=(8, 8)),
        likelihood=Categorical(),
        classes=tuple(map(str, range(_KNOWN))),
        shifted={
            "rotated": TensorDataset(turned, y[places["test"]]),
            "unseen": TensorDataset(images[~known], labels[~known]),
        },
    )


def mnist(folder: Path | str | None = None, name: str = "MNIST", seed: int = 0) -> Source:
    """MNIST, or another set of its format such as "FashionMNIST", from ``folder/name/raw`` as torchvision lays it out.

    ``folder`` is `data_dir()` by default. Validation is set aside from the training images by ``seed``.
    """
    raw = (data_dir() if folder is None else Path(folder)) / name / "raw"
    if not raw.is_dir():
        raise FileError(f"there is no folder {raw}; put {name}'s idx files there, or set LEANBAYES_DATA")
    sets = {
        split: (read_idx(raw / f"{part}-images-idx3-ubyte.gz"), read_idx(raw / f"{part}-labels-idx1-ubyte.gz"))
        for split, part in (("train", "train"), ("test", "t10k"))
    }
    for split, (x, y) in sets.items():
        if x.ndim != 3 or y.shape != (len(x),):
            raise InputError(f"{raw} has {split} images of shape {x.shape} but labels of shape {y.shape}")
    return from_arrays(raw.parent, sets, "classes", seed=seed)
