"""Folders of images and folders of masks, matched by the names of files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from leanbayes.errors import InputError
from leanbayes.lab.data.images import Kept, Size, Track, image_files, read_picture, untracked
from leanbayes.lab.data.splits import SPLITS, split_folders

__all__ = ["MaskFiles", "label_count", "mask_folders", "mask_pairs"]

_ENDINGS = ("", "_segmentation", "_mask", "_label", "_labels", "_gt")  # what a mask's name may add to its image's
_BESIDE = "_superpixels"  # ISIC keeps these pictures among the images

_LAYOUTS = (  # images and masks, for each of the names that a set may have
    ("images/{0}", "masks/{0}"),
    ("{0}/images", "{0}/masks"),
    ("{0}", "{0}annot"),  # CamVid as SegNet lays it out
    ("ISIC-20*_{1}_Data", "ISIC-20*_{1}_Part1_GroundTruth"),
    ("ISIC2018_Task1-2_{1}_Input", "ISIC2018_Task1_{1}_GroundTruth"),
    ("ISIC-20*_{1}_v2_Data", "ISIC-20*_{1}_v2_Part1_GroundTruth"),  # its test set
)


def mask_folders(path: Path, masks: Path | None) -> dict[str, tuple[Path, Path]]:
    """Folders of images and masks by set, {} if there are none: given as two, or in a layout that is known."""
    if masks is not None:
        if not masks.is_dir():
            raise InputError(f"there is no folder of masks {masks}")
        images, labels = split_folders(path), split_folders(masks)
        if images.keys() != labels.keys():
            raise InputError(
                f"{path} is divided in {sorted(images)}, but {masks} in {sorted(labels)}; divide both alike"
            )
        return {name: (images[name], labels[name]) for name in images} or {"train": (path, masks)}
    found: dict[str, tuple[Path, Path]] = {}
    for name, names in SPLITS.items():
        for layout in _LAYOUTS:
            for word in names:
                pair = [sorted(path.glob(part.format(word, word.capitalize()))) for part in layout]
                if all(len(folders) == 1 and folders[0].is_dir() for folders in pair):
                    found.setdefault(name, (pair[0][0], pair[1][0]))
    if not found and (path / "images").is_dir() and (path / "masks").is_dir():
        return {"train": (path / "images", path / "masks")}
    return found if "train" in found else {}


def mask_pairs(images: Path, masks: Path) -> list[tuple[Path, Path]]:
    """Each image with its mask; one without the other is an error."""
    pictures = _by_stem([file for file in image_files(images) if not file.stem.endswith(_BESIDE)], images)
    labels = _by_stem(image_files(masks), masks)
    if not pictures:
        raise InputError(f"{images} has no images")
    pairs = []
    for stem, picture in pictures.items():
        found = [labels.pop(stem + ending) for ending in _ENDINGS if stem + ending in labels]
        if len(found) != 1:
            what = f"two masks, {found[0].name} and {found[1].name}," if found else "no mask"
            raise InputError(f"image {picture} has {what} in {masks}; its mask would be called {Path(stem).name}.png")
        pairs.append((picture, found[0]))
    if labels:
        raise InputError(f"mask {next(iter(labels.values()))} has no image in {images}; add it or remove the mask")
    return pairs


class MaskFiles:
    """Masks by number, as class indices (height, width). All are read once, which finds the damaged.

    ``first`` has for each value the first file with it. ``yes_or_no`` turns 255 into class 1.
    """

    def __init__(self, pairs: Sequence[tuple[Path, Path]], size: Size, track: Track = untracked) -> None:
        self.pairs, self.size, self.yes_or_no = list(pairs), size, False
        self.first: dict[int, Path] = {}
        self.kept = Kept()
        for image, mask in track(self.pairs, "reading masks"):
            labels = _read_labels(mask, image, size)
            for value in labels.unique().tolist():
                self.first.setdefault(value, mask)
            self.kept.add(labels.to(torch.uint8) if 0 <= labels.min() <= labels.max() < 256 else labels)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, place: int) -> Tensor:
        kept = self.kept[place]
        image, mask = self.pairs[place]
        labels = (_read_labels(mask, image, self.size) if kept is None else kept).long()
        return labels.masked_fill(labels == 255, 1) if self.yes_or_no else labels


def label_count(train: dict[int, Path], others: Sequence[dict[int, Path]], ignore: int | None) -> tuple[int, bool]:
    """How many classes the values in masks are, and whether they are 0 and 255 for no and yes.

    The classes are those of the training masks, 0 to the largest value but ``ignore``.
    """
    values = {value for value in train if value != ignore}
    yes_or_no = values == {0, 255} and ignore != 1
    allowed = {0, 255} if yes_or_no else set(range(max(values, default=0) + 1))
    if len(values) < 2:
        raise InputError(f"the training masks have one value only ({sorted(values)}); two or more classes are needed")
    if min(values) < 0 or len(values) * 2 < len(allowed):
        some = max(values)
        raise InputError(
            f"masks hold {len(values)} values from {min(values)} to {some} (as in {train[some]}), not classes; "
            f"save them as 0, 1, 2, ... or as 0 and 255, or give a value to leave out, such as ignore={some}"
        )
    for other in others:
        for value, path in other.items():
            if value not in allowed and value != ignore:
                raise InputError(f"mask {path} has the class {value}, which is unseen in the training masks; remove it")
    return (2 if yes_or_no else len(allowed)), yes_or_no


def _by_stem(files: Sequence[Path], folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for file in files:
        stem = file.relative_to(folder).with_suffix("").as_posix()
        if stem in found:
            raise InputError(f"{found[stem]} and {file} have the same name; keep one of them")
        found[stem] = file
    return found


def _read_labels(path: Path, image: Path, size: Size) -> Tensor:
    """Values of a mask as large as its image, brought to ``size`` by taking the nearest."""
    with Image.open(image) as picture:
        width, height = picture.size

    def convert(mask: Image.Image) -> Image.Image:
        if mask.size != (width, height):
            raise InputError(
                f"mask {path} is {mask.height}x{mask.width}, but its image {image} is {height}x{width}; make them alike"
            )
        if mask.mode == "1":
            mask = mask.convert("L")
        bands = mask.split()[:3] if mask.mode in ("LA", "RGB", "RGBA") else (mask,)
        bands = bands[:1] if mask.mode == "LA" else bands
        if any(band.tobytes() != bands[0].tobytes() for band in bands):
            raise InputError(f"mask {path} has colours; save it with one channel, of class indices or of 0 and 255")
        if bands[0].mode == "F":
            raise InputError(f"mask {path} holds floating-point numbers; save it with integers")
        return bands[0].resize((size[1], size[0]), Image.Resampling.NEAREST)

    return torch.from_numpy(np.array(read_picture(path, convert)).astype(np.int64))
