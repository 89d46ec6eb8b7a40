"""Cityscapes (Cordts et al. 2016): street scenes of 50 cities with nineteen classes, in the official folders."""

from pathlib import Path

import torch
from torch import Tensor

from leanbayes.errors import FileError, InputError
from leanbayes.lab.data.images import ImageFiles, Size, Track, image_files, untracked
from leanbayes.lab.data.masks import MaskFiles
from leanbayes.lab.data.named import DataSet, Origin
from leanbayes.lab.data.preparation import Preparation, statistics
from leanbayes.lab.data.source import Examples, Source
from leanbayes.lab.data.splits import line_up

__all__ = ["cityscapes"]

_ORIGIN = Origin("Cityscapes (leftImg8bit and gtFine)", "https://www.cityscapes-dataset.com/downloads")
_CLASSES = (
    "road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign", "vegetation", "terrain",
    "sky", "person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle",
)  # fmt: skip
_IDS = (
    7,
    8,
    11,
    12,
    13,
    17,
    19,
    20,
    21,
    22,
    23,
    24,
    25,
    26,
    27,
    28,
    31,
    32,
    33,
)  # the numbers of these classes in the files
_VOID = 255
_VALIDATION = 0.15  # of the training scenes


class _TrainingLabels:
    """Masks whose numbers for classes are turned into 0 to 18. All other numbers become void, which does not count."""

    def __init__(self, masks: MaskFiles) -> None:
        self.masks = masks
        self.table = torch.full((256,), _VOID)
        self.table[list(_IDS)] = torch.arange(len(_IDS))

    def __len__(self) -> int:
        return len(self.masks)

    def __getitem__(self, index: int) -> Tensor:
        return self.table[self.masks[index]]


def cityscapes(
    folder: Path | str | None = None, seed: int = 0, *, size: int | Size = (256, 512), track: Track = untracked
) -> Source:
    """Read Cityscapes from the folders ``leftImg8bit`` and ``gtFine``.

    The labels of the set that is published as "test" are not public. The test set is therefore the 500 scenes that are
    published as "val", and whole cities of "train" are for validation.

    Args:
        folder: the data directory, by default `data_dir()`.
        seed: decides which cities are for validation.
        size: (height, width) to which images are resized, or one number for both. The default is that of
            sensitivity-guided subnetworks (appendix H.4).
        track: shows the progress of reading images.
    """
    top = _ORIGIN.find(folder, "Cityscapes/leftImg8bit", "cityscapes/leftImg8bit", "leftImg8bit").parent
    pairs = _pairs(top, "train")
    positions = line_up([image.parent.name for image, _ in pairs], seed)
    sets = {
        "train": [pair for pair, position in zip(pairs, positions, strict=True) if position >= _VALIDATION],
        "validation": [pair for pair, position in zip(pairs, positions, strict=True) if position < _VALIDATION],
        "test": _pairs(top, "val"),
    }
    for name, members in sets.items():
        if not members:
            raise InputError(f"{top} has too few cities for the {name} set; add cities")
    sides = (size, size) if isinstance(size, int) else size
    inputs = {name: ImageFiles([image for image, _ in members], 3, sides, track) for name, members in sets.items()}
    targets = {name: _TrainingLabels(MaskFiles(members, sides, track)) for name, members in sets.items()}
    mean, std = statistics(inputs["train"][index][None] for index in range(len(inputs["train"])))
    plan = Preparation("pixels", mean, std, _CLASSES, size=sides, resize=True, ignore=_VOID)
    examples = {name: Examples(inputs[name], targets[name], plan) for name in sets}
    return Source("cityscapes", examples["train"], examples["validation"], examples["test"], plan)


def _pairs(top: Path, split: str) -> list[tuple[Path, Path]]:
    pairs = []
    for image in image_files(top / "leftImg8bit" / split):
        stem = image.name.removesuffix("_leftImg8bit.png")
        mask = top / "gtFine" / split / image.parent.name / f"{stem}_gtFine_labelIds.png"
        if not mask.is_file():
            raise FileError(f"image {image} has no mask {mask}; get gtFine from {_ORIGIN.page}")
        pairs.append((image, mask))
    if not pairs:
        raise FileError(f"{top / 'leftImg8bit' / split} has no images; get leftImg8bit from {_ORIGIN.page}")
    return pairs


SETS = (DataSet("cityscapes", cityscapes, _ORIGIN, resizes=True),)
