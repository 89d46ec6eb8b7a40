"""A folder of images: one folder for each class, or images with a folder of masks."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from leanbayes.errors import InputError
from leanbayes.lab.data.folders import class_folders
from leanbayes.lab.data.images import ImageFiles, common_shape
from leanbayes.lab.data.masks import MaskFiles, label_count, mask_folders, mask_pairs
from leanbayes.lab.data.preparation import Preparation, statistics
from leanbayes.lab.data.reader import Reader, ReadOptions
from leanbayes.lab.data.source import Source, source_of
from leanbayes.lab.data.splits import complete

__all__ = ["FOLDER"]


def _read(path: Path, options: ReadOptions) -> Source:
    kind, masks = options.kind, options.masks
    if kind not in (None, "classes", "pixels") or (kind == "classes" and masks is not None):
        raise InputError(f"{path} is a folder of images {'with' if masks else 'without'} masks: it has no {kind!r}")
    folders = {} if kind == "classes" else mask_folders(path, masks)
    if folders:
        return _with_masks(path, folders, options)
    if kind == "pixels":
        raise InputError(f"{path} has no folders images and masks; give the folder of masks with masks=...")
    return _with_classes(path, options)


def _with_classes(path: Path, options: ReadOptions) -> Source:
    classes, sets = class_folders(path, options.seed)
    files = [file for pairs in sets.values() for file, _ in pairs]
    channels, sides = common_shape(files, options.size, options.track)
    inputs = {
        name: ImageFiles([file for file, _ in pairs], channels, sides, options.track) for name, pairs in sets.items()
    }
    targets = {name: torch.tensor([label for _, label in pairs]) for name, pairs in sets.items()}
    mean, std = statistics(_one_by_one(inputs["train"]))
    plan = Preparation("classes", mean, std, classes, size=sides, resize=options.size is not None)
    return source_of(path, inputs, targets, plan)


def _with_masks(path: Path, folders: Mapping[str, tuple[Path, Path]], options: ReadOptions) -> Source:
    known_sets = {name: mask_pairs(*images_and_masks) for name, images_and_masks in folders.items()}
    sets = complete(known_sets, lambda _: 0, options.seed, path)
    images = [image for pairs in sets.values() for image, _ in pairs]
    channels, sides = common_shape(images, options.size, options.track)
    inputs = {
        name: ImageFiles([image for image, _ in pairs], channels, sides, options.track) for name, pairs in sets.items()
    }
    targets = {name: MaskFiles(pairs, sides, options.track) for name, pairs in sets.items()}
    others = [masks.first_with for name, masks in targets.items() if name != "train"]
    count, binary = label_count(targets["train"].first_with, others, options.ignore)
    for masks in targets.values():
        masks.binary = binary
    classes = ("background", "foreground") if binary else tuple(map(str, range(count)))
    mean, std = statistics(_one_by_one(inputs["train"]))
    plan = Preparation("pixels", mean, std, classes, size=sides, resize=options.size is not None, ignore=options.ignore)
    return source_of(path, inputs, targets, plan)


def _one_by_one(images: ImageFiles) -> Iterator[Tensor]:
    """Batches of one image each, so that not all images are in memory at once."""
    return (images[row][None] for row in range(len(images)))


FOLDER = Reader("folder", "a folder of images", Path.is_dir, _read, takes=("masks", "size", "ignore"))
