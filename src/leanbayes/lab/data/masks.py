"""Segmentation data: folders of images and folders of masks, which belong together by the names of their files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from leanbayes.errors import InputError
from leanbayes.lab.data.images import Size, TensorCache, Track, image_files, image_size, read_picture, untracked
from leanbayes.lab.data.splits import SPLITS, split_folders

__all__ = ["MaskFiles", "label_count", "mask_folders", "mask_pairs"]

_ENDINGS = ("", "_segmentation", "_mask", "_label", "_labels", "_gt")  # what a mask's name may add to its image's
_SUPERPIXELS = "_superpixels"  # ISIC keeps these pictures among the images

_LAYOUTS = (  # folders of images and of masks; {0} is a name of a set, such as "val", and {1} is it with a capital
    ("images/{0}", "masks/{0}"),
    ("{0}/images", "{0}/masks"),
    ("{0}", "{0}annot"),  # CamVid as SegNet lays it out
    ("ISIC-20*_{1}_Data", "ISIC-20*_{1}_Part1_GroundTruth"),
    ("ISIC2018_Task1-2_{1}_Input", "ISIC2018_Task1_{1}_GroundTruth"),
    ("ISIC-20*_{1}_v2_Data", "ISIC-20*_{1}_v2_Part1_GroundTruth"),  # the test set of ISIC 2017
)


def mask_folders(path: Path, masks: Path | None) -> dict[str, tuple[Path, Path]]:
    """Find the folders of images and of masks.

    Args:
        path: the folder of images or, without ``masks``, a folder that contains both in a known layout.
        masks: the folder of masks.

    Returns:
        The folder of images and the folder of masks for each set ("train", ...), or {} if ``path`` has no such folders.
    """
    if masks is not None:
        if not masks.is_dir():
            raise InputError(f"there is no folder of masks {masks}; give one that exists")
        image_sets, mask_sets = split_folders(path), split_folders(masks)
        if image_sets.keys() != mask_sets.keys():
            raise InputError(
                f"{path} is divided in {sorted(image_sets)}, but {masks} in {sorted(mask_sets)}; divide both alike"
            )
        return {name: (image_sets[name], mask_sets[name]) for name in image_sets} or {"train": (path, masks)}
    folders: dict[str, tuple[Path, Path]] = {}
    for name, aliases in SPLITS.items():
        for layout in _LAYOUTS:
            for alias in aliases:
                matches = [sorted(path.glob(pattern.format(alias, alias.capitalize()))) for pattern in layout]
                if all(len(match) == 1 and match[0].is_dir() for match in matches):
                    folders.setdefault(name, (matches[0][0], matches[1][0]))
    if not folders and (path / "images").is_dir() and (path / "masks").is_dir():
        return {"train": (path / "images", path / "masks")}
    return folders if "train" in folders else {}


def mask_pairs(images: Path, masks: Path) -> list[tuple[Path, Path]]:
    """Return each image file of one folder with its mask in the other; one without the other is an error."""
    image_of = _by_stem([file for file in image_files(images) if not file.stem.endswith(_SUPERPIXELS)], images)
    mask_of = _by_stem(image_files(masks), masks)
    if not image_of:
        raise InputError(f"{images} has no images; add them, or give another folder")
    pairs = []
    for stem, image in image_of.items():
        matching = [mask_of.pop(stem + ending) for ending in _ENDINGS if stem + ending in mask_of]
        if len(matching) != 1:
            what = f"two masks, {matching[0].name} and {matching[1].name}," if matching else "no mask"
            raise InputError(f"image {image} has {what} in {masks}; its mask would be called {Path(stem).name}.png")
        pairs.append((image, matching[0]))
    if mask_of:
        raise InputError(f"mask {next(iter(mask_of.values()))} has no image in {images}; add it or remove the mask")
    return pairs


class MaskFiles:
    """The masks of a list of files as class indices (height, width), which are found by their index.

    The constructor reads every file, so that it finds damaged ones at once. The masks stay in memory if they are small
    enough together.

    Attributes:
        pairs: the image file and the mask file of each example.
        first_with: for each value in the masks, the first file that has it.
        binary: whether the masks hold 0 for no and 255 for yes; 255 then becomes class 1.
    """

    def __init__(self, pairs: Sequence[tuple[Path, Path]], size: Size, track: Track = untracked) -> None:
        self.pairs, self.size, self.binary = list(pairs), size, False
        self.first_with: dict[int, Path] = {}
        self.cache = TensorCache()
        for image, mask in track(self.pairs, "reading masks"):
            labels = _read_labels(mask, image, size)
            for value in labels.unique().tolist():
                self.first_with.setdefault(value, mask)
            self.cache.add(labels.to(torch.uint8) if 0 <= labels.min() <= labels.max() < 256 else labels)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Tensor:
        cached = self.cache[index]
        image, mask = self.pairs[index]
        labels = (_read_labels(mask, image, self.size) if cached is None else cached).long()
        return labels.masked_fill(labels == 255, 1) if self.binary else labels


def label_count(train: dict[int, Path], others: Sequence[dict[int, Path]], ignore: int | None) -> tuple[int, bool]:
    """Count the classes in masks.

    The classes are 0 to the largest value in the training masks, apart from ``ignore``; or the values 0 and 255, which
    then stand for no and yes.

    Args:
        train: each value in the training masks, with a file that has it.
        others: the same for each other set.
        ignore: the value of pixels that do not count.

    Returns:
        The number of classes, and whether the values are 0 and 255.
    """
    values = {value for value in train if value != ignore}
    binary = values == {0, 255} and ignore != 1
    allowed = {0, 255} if binary else range(max(values, default=0) + 1)
    if len(values) < 2:
        raise InputError(f"the training masks have one value only ({sorted(values)}); two or more classes are needed")
    if min(values) < 0 or len(values) * 2 < len(allowed):
        largest = max(values)
        raise InputError(
            f"masks hold {len(values)} values from {min(values)} to {largest} (as in {train[largest]}), not classes; "
            f"save them as 0, 1, 2, ... or as 0 and 255, or give a value to leave out, such as ignore={largest}"
        )
    for other in others:
        for value, path in other.items():
            if value not in allowed and value != ignore:
                raise InputError(f"mask {path} has the class {value}, which is unseen in the training masks; remove it")
    return (2 if binary else len(allowed)), binary


def _by_stem(files: Sequence[Path], folder: Path) -> dict[str, Path]:
    """Return files by their path inside the folder without the suffix; two files of one name are an error."""
    file_of: dict[str, Path] = {}
    for file in files:
        stem = file.relative_to(folder).with_suffix("").as_posix()
        if stem in file_of:
            raise InputError(f"{file_of[stem]} and {file} have the same name; keep one of them")
        file_of[stem] = file
    return file_of


def _read_labels(path: Path, image: Path, size: Size) -> Tensor:
    """Read the values of a mask, which must be as large as its image, and resize it by taking the nearest value."""
    height, width = image_size(image)

    def convert(mask: Image.Image) -> Image.Image:
        if mask.size != (width, height):
            raise InputError(
                f"mask {path} is {mask.height}x{mask.width}, but its image {image} is {height}x{width}; make them alike"
            )
        if mask.mode == "1":
            mask = mask.convert("L")
        bands = mask.split()[:3] if mask.mode in ("LA", "RGB", "RGBA") else (mask,)
        bands = bands[:1] if mask.mode == "LA" else bands
        if len(bands[0].getbands()) > 1 or any(band.tobytes() != bands[0].tobytes() for band in bands):
            raise InputError(f"mask {path} has colours; save it with one channel, of class indices or of 0 and 255")
        if bands[0].mode == "F":
            raise InputError(f"mask {path} holds floating-point numbers; save it with integers")
        return bands[0].resize((size[1], size[0]), Image.Resampling.NEAREST)

    values = np.array(read_picture(path, convert))
    return torch.from_numpy(values if values.dtype == np.uint8 else values.astype(np.int32))
