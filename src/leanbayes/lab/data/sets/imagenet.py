"""ImageNet with 1000 classes (Russakovsky et al. 2015), with a folder for each class in ``train`` and in ``val``."""

from pathlib import Path

import torch
from torch import Tensor

from leanbayes.errors import FileError, InputError
from leanbayes.lab.data.images import Size, Track, image_files, read_image, untracked
from leanbayes.lab.data.named import DataSet, Origin
from leanbayes.lab.data.preparation import Preparation
from leanbayes.lab.data.source import Examples, Source
from leanbayes.lab.data.splits import divide

__all__ = ["imagenet"]

_ORIGIN = Origin("ImageNet (ILSVRC 2012)", "https://www.image-net.org/challenges/LSVRC/2012")
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # the usual ones, because measuring them takes hours
_LARGEST_VALIDATION = 0.15  # of the training images


class _Files:
    """Images that are read when they are asked for, because there are too many to read all of them first."""

    def __init__(self, paths: list[Path], size: Size) -> None:
        self.paths, self.size = paths, size

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        return read_image(self.paths[index], 3, self.size)


def imagenet(
    folder: Path | str | None = None, seed: int = 0, *, size: int | Size = 224, track: Track = untracked
) -> Source:
    """Read ImageNet from ``ImageNet/train/<class>`` and ``ImageNet/val/<class>``.

    The test set is the set that is published as "val". The validation set is drawn from "train". It is as large as the
    test set, but at most 15 % of "train".

    Args:
        folder: the data directory, by default `data_dir()`.
        seed: decides which images are for validation.
        size: (height, width) to which images are resized, or one number for both.
        track: shows the progress of looking through the folders.
    """
    top = _ORIGIN.find(folder, "ImageNet/train", "imagenet/train", "ILSVRC/Data/CLS-LOC/train").parent
    classes = tuple(sorted(path.name for path in (top / "train").iterdir() if path.is_dir()))
    if len(classes) < 2:
        raise FileError(f"{top / 'train'} has {len(classes)} class folders; two or more are needed")
    train, test = (_images(top / part, classes, track) for part in ("train", "val"))
    rows = divide([label for _, label in train], {"validation": min(_LARGEST_VALIDATION, len(test) / len(train))}, seed)
    sets = {name: [train[row] for row in chosen] for name, chosen in rows.items()} | {"test": test}
    if not sets["validation"]:
        raise InputError(f"{top} has too few images to set some aside for validation; add images")
    sides = (size, size) if isinstance(size, int) else size
    plan = Preparation("classes", _MEAN, _STD, classes, size=sides, resize=True)
    examples = {
        name: Examples(_Files([file for file, _ in pairs], sides), torch.tensor([label for _, label in pairs]), plan)
        for name, pairs in sets.items()
    }
    return Source("imagenet", examples["train"], examples["validation"], examples["test"], plan)


def _images(folder: Path, classes: tuple[str, ...], track: Track) -> list[tuple[Path, int]]:
    if not folder.is_dir() or not any((folder / name).is_dir() for name in classes):
        raise FileError(
            f"{folder} has no class folders such as {classes[0]}; sort its images into them, "
            "for example with the script valprep.sh, which many copies of ImageNet contain"
        )
    pairs = []
    for label, name in enumerate(track(classes, f"looking through {folder.name}")):
        pairs += [(file, label) for file in image_files(folder / name)]
    if not pairs:
        raise FileError(f"{folder} has no images; get them from {_ORIGIN.page}")
    return pairs


SETS = (DataSet("imagenet", imagenet, _ORIGIN, resizes=True),)
