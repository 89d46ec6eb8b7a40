"""Handwritten digits from scikit-learn, and MNIST and other data sets of its format from files."""

from functools import partial
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

from leanbayes.errors import InputError, MissingPackage
from leanbayes.lab.data.arrays import read_idx
from leanbayes.lab.data.named import DataSet, Origin, Remote, with_classes
from leanbayes.lab.data.source import Source, from_arrays
from leanbayes.lab.data.splits import SPLITS, divide
from leanbayes.lab.data.task import Task
from leanbayes.lab.models import model_named
from leanbayes.likelihood import Categorical

__all__ = ["digits", "mnist"]

_KNOWN = 8
_VALIDATION, _TEST = 150, 993  # of the 1443 images of known digits; about 300 are left for training
_CLOTHES = (
    "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
_FILES = (
    "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"
)  # fmt: skip


def _origin(title: str, name: str, page: str, mirror: str, *sums: str) -> Origin:
    remotes = [Remote(mirror + file, md5, (f"{name}/raw/{file}",)) for file, md5 in zip(_FILES, sums, strict=True)]
    return Origin(title, page, tuple(remotes))


_ORIGINS = {
    "MNIST": _origin(
        "MNIST",
        "MNIST",
        "http://yann.lecun.com/exdb/mnist",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    "FashionMNIST": _origin(
        "Fashion-MNIST",
        "FashionMNIST",
        "https://github.com/zalandoresearch/fashion-mnist",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
}


def digits(seed: int = 0) -> Task:
    """Return the task of reading the digits 0 to 7 in scikit-learn's images of 8x8 pixels.

    About 300 images are for training, 150 for validation and 993 for the test. ``shifted`` holds two further sets: the
    test digits "rotated" by 90°, and the digits 8 and 9, which are "unseen" in training.

    Args:
        seed: decides which images are in which set.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingPackage.of("the data set of digits", "scikit-learn", "lab") from error
    data = load_digits()
    images = torch.tensor(data.images / 16, dtype=torch.float32)[:, None]
    labels = torch.tensor(data.target)
    known = labels < _KNOWN
    x, y = images[known], labels[known]
    rows = divide(y.tolist(), {"validation": _VALIDATION / len(y), "test": _TEST / len(y)}, seed)
    train, validation, test = (TensorDataset(x[rows[name]], y[rows[name]]) for name in SPLITS)
    return Task(
        "digits",
        train,
        validation,
        test,
        model=partial(model_named, "small_cnn", in_channels=1, classes=_KNOWN, size=(8, 8)),
        likelihood=Categorical(),
        classes=tuple(map(str, range(_KNOWN))),
        shifted={
            "rotated": TensorDataset(torch.rot90(x[rows["test"]], dims=(2, 3)), y[rows["test"]]),
            "unseen": TensorDataset(images[~known], labels[~known]),
        },
    )


def mnist(folder: Path | str | None = None, name: str = "MNIST", seed: int = 0) -> Source:
    """Read MNIST, or another data set of its format, from ``folder/name/raw`` as torchvision lays it out.

    Args:
        folder: the data directory, by default `data_dir()`.
        name: the name of the set's folder, such as "MNIST" or "FashionMNIST".
        seed: decides which 15 % of the training images are for validation.
    """
    origin = _ORIGINS.get(name) or Origin(name, "where it is published")
    files = [origin.find(folder, f"{name}/raw/{file}") for file in _FILES]
    train_x, train_y, test_x, test_y = map(read_idx, files)
    sets, raw = {"train": (train_x, train_y), "test": (test_x, test_y)}, files[0].parent
    for split, (x, y) in sets.items():
        if x.ndim != 3 or y.shape != (len(x),):
            raise InputError(
                f"{raw} has {split} images of shape {x.shape} but labels of shape {y.shape}; copy it again"
            )
    source = from_arrays(raw.parent, sets, "classes", seed=seed)
    return with_classes(source, _CLOTHES) if name == "FashionMNIST" else source


SETS = (
    DataSet("mnist", mnist, _ORIGINS["MNIST"]),
    DataSet("fashion-mnist", partial(mnist, name="FashionMNIST"), _ORIGINS["FashionMNIST"]),
)
