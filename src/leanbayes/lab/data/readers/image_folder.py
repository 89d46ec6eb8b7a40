"""A folder of images: one folder for each class, or images with a folder of masks, or with one for each rater."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from leanbayes.errors import InputError
from leanbayes.lab.data.folders import class_folders
from leanbayes.lab.data.images import ImageFiles, Size, common_shape
from leanbayes.lab.data.masks import (
    MaskFiles,
    RatedFiles,
    empty_masks,
    label_count,
    mask_folders,
    mask_pairs,
    rated_files,
)
from leanbayes.lab.data.patients import PatientOf, patients_from, subgroups_from
from leanbayes.lab.data.preparation import Preparation, statistics
from leanbayes.lab.data.rated import rated_sets
from leanbayes.lab.data.reader import Reader, ReadOptions
from leanbayes.lab.data.scans import has_scans
from leanbayes.lab.data.source import Cases, Source, source_of
from leanbayes.lab.data.splits import complete, split_folders

__all__ = ["FOLDER"]


def _read(path: Path, options: ReadOptions) -> Source:
    kind, masks = options.kind, options.masks
    if kind not in (None, "classes", "pixels") or (kind == "classes" and (masks or options.raters)):
        raise InputError(f"{path} is a folder of images {'with' if masks else 'without'} masks: it has no {kind!r}")
    if options.raters is not None:
        return _with_raters(path, options)
    if options.rating is not None:
        raise InputError(f"rating={options.rating} is for several raters; give a folder of masks for each with raters=")
    folders = {} if kind == "classes" else mask_folders(path, masks)
    if folders:
        return _with_masks(path, folders, options)
    if kind == "pixels":
        raise InputError(f"{path} has no folders images and masks; give the folder of masks with masks=...")
    return _with_classes(path, options)


def _with_classes(path: Path, options: ReadOptions) -> Source:
    patient = _patient(options)
    classes, sets = class_folders(path, options.seed, patient)
    files = [file for pairs in sets.values() for file, _ in pairs]
    channels, sides = common_shape(files, options.size, options.track)
    inputs = {
        name: ImageFiles([file for file, _ in pairs], channels, sides, options.track) for name, pairs in sets.items()
    }
    targets = {name: torch.tensor([label for _, label in pairs]) for name, pairs in sets.items()}
    mean, std = statistics(_one_by_one(inputs["train"]))
    plan = Preparation("classes", mean, std, classes, size=sides, resize=options.size is not None)
    return source_of(path, inputs, targets, plan, _cases(inputs, path, patient, options))


def _with_masks(path: Path, folders: Mapping[str, tuple[Path, Path]], options: ReadOptions) -> Source:
    patient = _patient(options)
    known_sets = {name: mask_pairs(*images_and_masks) for name, images_and_masks in folders.items()}
    whose = None if patient is None else (lambda pair: patient(_name(pair[0], path)))
    sets = complete(known_sets, lambda _: 0, options.seed, path, whose)
    channels, sides = common_shape(
        [image for pairs in sets.values() for image, _ in pairs], options.size, options.track
    )
    inputs = {
        name: ImageFiles([image for image, _ in pairs], channels, sides, options.track) for name, pairs in sets.items()
    }
    targets = {name: MaskFiles(pairs, sides, options.track) for name, pairs in sets.items()}
    plan = _plan(inputs, targets, sides, options)
    return source_of(path, inputs, targets, plan, _cases(inputs, path, patient, options), _remarks(targets))


def _with_raters(path: Path, options: ReadOptions) -> Source:
    patient = _patient(options)
    known_sets = rated_files(path, split_folders(path) or {"train": path}, options.raters or ())
    whose = None if patient is None else (lambda pair: patient(_name(pair[0], path)))
    sets = complete(known_sets, lambda _: 0, options.seed, path, whose)
    channels, sides = common_shape(
        [image for pairs in sets.values() for image, _ in pairs], options.size, options.track
    )
    inputs = {
        name: ImageFiles([image for image, _ in pairs], channels, sides, options.track) for name, pairs in sets.items()
    }
    masks = {name: RatedFiles(pairs, sides, options.track) for name, pairs in sets.items()}
    plan = _plan(inputs, masks, sides, options)
    present = {name: files.present for name, files in masks.items()}
    images, targets = rated_sets(inputs, masks, present, options.rating or "random", options.seed)
    return source_of(path, images, targets, plan, _cases(inputs, path, patient, options), _remarks(masks))


def _plan(
    inputs: Mapping[str, ImageFiles], masks: Mapping[str, MaskFiles | RatedFiles], sides: Size, options: ReadOptions
) -> Preparation:
    """Count the classes of all masks, tell each set of masks what 255 means, and return the preparation."""
    others = [files.first_with for name, files in masks.items() if name != "train"]
    count, binary = label_count(masks["train"].first_with, others, options.ignore)
    for files in masks.values():
        files.binary = binary
    classes = ("background", "foreground") if binary else tuple(map(str, range(count)))
    mean, std = statistics(_one_by_one(inputs["train"]))
    return Preparation("pixels", mean, std, classes, size=sides, resize=options.size is not None, ignore=options.ignore)


def _patient(options: ReadOptions) -> PatientOf | None:
    return None if options.groups is None else patients_from(options.groups)


def _name(file: Path, path: Path) -> str:
    """Return the path of a file below the folder of the data; files of another folder have their own name only."""
    return (file.relative_to(path) if file.is_relative_to(path) else Path(file.name)).as_posix()


def _cases(
    inputs: Mapping[str, ImageFiles], path: Path, patient: PatientOf | None, options: ReadOptions
) -> dict[str, Cases]:
    subgroup = None if options.subgroups is None else subgroups_from(options.subgroups)
    return {
        name: Cases.of([_name(file, path) for file in files.paths], patient, subgroup) for name, files in inputs.items()
    }


def _remarks(masks: Mapping[str, MaskFiles | RatedFiles]) -> list[str]:
    empty = [file for files in masks.values() for file in files.empty]
    return empty_masks(empty, sum(map(len, masks.values())))


def _one_by_one(images: ImageFiles) -> Iterator[Tensor]:
    """Batches of one image each, so that not all images are in memory at once."""
    return (images[row][None] for row in range(len(images)))


FOLDER = Reader(
    "folder",
    "a folder of images",
    lambda path: path.is_dir() and not has_scans(path),
    _read,
    takes=("masks", "size", "ignore", "raters", "rating", "groups", "subgroups", "window", "patches"),
)
