"""Segmentation data: folders of images and folders of masks, which belong together by the names of their files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from leanbayes.errors import InputError
from leanbayes.lab.data.images import Size, TensorCache, Track, image_files, image_size, read_picture, untracked
from leanbayes.lab.data.patients import composed
from leanbayes.lab.data.splits import SPLITS, split_folders

__all__ = ["MaskFiles", "RatedFiles", "empty_masks", "label_count", "mask_folders", "mask_pairs", "rated_files"]

_ENDINGS = ("", "_segmentation", "_mask", "_label", "_labels", "_gt")  # what a mask's name may add to its image's
_MOST_CLASSES = 200  # more values than this are no classes: the mask is a picture with grey levels
_SUPERPIXELS = "_superpixels"  # ISIC keeps these pictures among the images

RatedImage = tuple[Path, list[Path | None]]  # an image, and its mask by each rater

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
        mask = _mask_of(stem, image, mask_of, masks)
        if mask is None:
            raise InputError(f"image {image} has no mask in {masks}; its mask would be called {stem}.png")
        pairs.append((image, mask))
    if mask_of:
        raise InputError(f"mask {next(iter(mask_of.values()))} has no image in {images}; add it or remove the mask")
    return pairs


def rated_files(images: Path, sets: Mapping[str, Path], raters: Sequence[Path]) -> dict[str, list[RatedImage]]:
    """Return each image of each set with its mask by each rater; None stands for a rater who has not segmented it.

    Args:
        images: the folder of all images.
        sets: the folder of each set, which is ``images`` or lies in it.
        raters: the folder of each rater. A mask lies there under the path that its image has in ``images``.
    """
    mask_of: list[dict[str, Path]] = []
    for folder in raters:
        if not folder.is_dir():
            raise InputError(f"there is no folder {folder} of a rater; give one that exists")
        mask_of.append(_by_stem(image_files(folder), folder))
        if not mask_of[-1]:
            raise InputError(f"the rater {folder} has no case; add masks, or leave this rater out")
    rated: dict[str, list[RatedImage]] = {}
    for name, top in sets.items():
        rated[name] = []
        for image in image_files(top):
            stem = _stem(image, images)
            masks = [_mask_of(stem, image, *pair) for pair in zip(mask_of, raters, strict=True)]
            if not any(masks):
                raise InputError(f"image {image} has no mask of any rater; add one, or remove the image")
            rated[name].append((image, masks))
    if not any(rated.values()):
        raise InputError(f"{images} has no images; add them, or give another folder")
    for left, folder in zip(mask_of, raters, strict=True):
        for mask in left.values():
            raise InputError(f"mask {mask} of the rater {folder} has no image in {images}; add it or remove the mask")
    return rated


class RatedFiles:
    """The masks of several raters, which are found by the index of their image: (raters, height, width) in bytes.

    The constructor reads every file, so that it finds damaged ones at once. The masks stay in memory if they are small
    enough together. The mask of a rater who has not segmented an image is zero.

    Attributes:
        present: which rater has segmented which image, (N, raters).
        first_with: for each value in the masks, the first file that has it.
        binary: whether the masks hold 0 for no and 255 for yes; 255 then becomes class 1.
        empty: the images in which no rater has marked anything.
    """

    def __init__(self, rated: Sequence[RatedImage], size: Size, track: Track = untracked) -> None:
        self.rated, self.size, self.binary = list(rated), size, False
        self.present = torch.tensor([[mask is not None for mask in masks] for _, masks in rated])
        self.first_with: dict[int, Path] = {}
        self.empty: list[Path] = []
        self.cache = TensorCache()
        for image, masks in track(self.rated, "reading masks"):
            labels = self._read(image, masks)
            for mask, values in zip(masks, labels, strict=True):
                for value in [] if mask is None else values.unique().tolist():
                    self.first_with.setdefault(value, mask)
            if not labels.any():
                self.empty.append(image)
            self.cache.add(labels)

    def __len__(self) -> int:
        return len(self.rated)

    def __getitem__(self, index: int) -> Tensor:
        cached = self.cache[index]
        labels = self._read(*self.rated[index]) if cached is None else cached
        return labels.masked_fill(labels == 255, 1) if self.binary else labels

    def _read(self, image: Path, masks: Sequence[Path | None]) -> Tensor:
        """Read the masks of all raters of one image; in bytes, if all values fit."""
        absent = torch.zeros(self.size, dtype=torch.uint8)
        labels = torch.stack([absent if mask is None else _read_labels(mask, image, self.size) for mask in masks])
        return labels.to(torch.uint8) if 0 <= labels.min() <= labels.max() < 256 else labels


def empty_masks(empty: Sequence[Path], of: int) -> list[str]:
    """Return a remark if masks mark nothing, which is right for healthy people only."""
    if not empty:
        return []
    return [
        f"{len(empty)} of {of} masks are empty, the first is that of {empty[0]}; Dice counts such a case as 1 if the "
        "prediction is empty too, and else as 0"
    ]


class MaskFiles:
    """The masks of a list of files as class indices (height, width), which are found by their index.

    The constructor reads every file, so that it finds damaged ones at once. The masks stay in memory if they are small
    enough together.

    Attributes:
        pairs: the image file and the mask file of each example.
        first_with: for each value in the masks, the first file that has it.
        binary: whether the masks hold 0 for no and 255 for yes; 255 then becomes class 1.
        empty: the masks that are zero everywhere.
    """

    def __init__(self, pairs: Sequence[tuple[Path, Path]], size: Size, track: Track = untracked) -> None:
        self.pairs, self.size, self.binary = list(pairs), size, False
        self.first_with: dict[int, Path] = {}
        self.empty: list[Path] = []
        self.cache = TensorCache()
        for image, mask in track(self.pairs, "reading masks"):
            labels = _read_labels(mask, image, size)
            if not labels.any():
                self.empty.append(mask)
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
        odd = min(values) if min(values) < 0 else max(values)
        raise InputError(
            f"masks hold {len(values)} values from {min(values)} to {max(values)} (as in {train[odd]}), not classes; "
            f"save them as 0, 1, 2, ... or as 0 and 255, or give a value to leave out, such as ignore={odd}"
        )
    if len(allowed) > _MOST_CLASSES:
        raise InputError(
            f"masks hold {len(values)} values up to {max(values)} (as in {train[max(values)]}), which are grey levels "
            "of a picture or of smoothed edges, not classes; save them as 0, 1, 2, ... or as 0 and 255"
        )
    for other in others:
        for value, path in other.items():
            if value not in allowed and value != ignore:
                raise InputError(f"mask {path} has the class {value}, which is unseen in the training masks; remove it")
    return (2 if binary else len(allowed)), binary


def _mask_of(stem: str, image: Path, mask_of: dict[str, Path], folder: Path) -> Path | None:
    """Take the mask of an image out of the masks of a folder; None if there is none, and two are an error."""
    matching = [mask_of.pop(stem + ending) for ending in _ENDINGS if stem + ending in mask_of]
    if len(matching) > 1:
        raise InputError(
            f"image {image} has two masks, {matching[0].name} and {matching[1].name}, in {folder}; its mask would be "
            f"called {stem}.png"
        )
    if matching and matching[0].suffix.lower() in (".jpg", ".jpeg"):
        raise InputError(f"mask {matching[0]} is a JPEG, which changes class indices near edges; save the masks as PNG")
    return matching[0] if matching else None


def _stem(file: Path, folder: Path) -> str:
    """Return the path of a file inside the folder, without the suffix."""
    return composed(file.relative_to(folder).with_suffix("").as_posix())


def _by_stem(files: Sequence[Path], folder: Path) -> dict[str, Path]:
    """Return files by their path inside the folder without the suffix; two files of one name are an error."""
    file_of: dict[str, Path] = {}
    for file in files:
        stem = _stem(file, folder)
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
