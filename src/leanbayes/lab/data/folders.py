"""Images in one folder for each class. Folders train, validation and test may lie above the class folders."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from leanbayes.errors import InputError
from leanbayes.lab.data.images import SUFFIXES, image_files
from leanbayes.lab.data.patients import PatientOf
from leanbayes.lab.data.splits import complete, split_folders

__all__ = ["class_folders"]


def class_folders(
    path: Path,
    seed: int,
    patient: PatientOf | None = None,
    images_in: Callable[[Path], list[Path]] = image_files,
    kinds: Collection[str] = SUFFIXES,
) -> tuple[tuple[str, ...], dict[str, list[tuple[Path, int]]]]:
    """Find the classes and the images in a folder.

    Args:
        path: the folder. It holds a folder for each class, or folders train, validation and test that hold them.
        seed: draws the sets that have no folder from the training set, class by class.
        patient: returns the patient of an image by its path in ``path``. No patient is then in two sets.
        images_in: finds the images in a folder and below it.
        kinds: the suffixes of such images, for errors.

    Returns:
        The names of the classes in order, and the image files with their class index for each of the three sets.
    """
    tops = split_folders(path)
    if not tops or not _folders(tops["train"]):  # "train" without folders inside is a class of that name
        tops = {"train": path}
    images = {name: _images_by_class(folder, images_in, kinds) for name, folder in tops.items()}
    classes = tuple(images["train"])
    if len(classes) < 2:
        raise InputError(f"{tops['train']} has one class folder only ({classes[0]}); two or more are needed")
    for name, by_class in images.items():
        for unseen in by_class.keys() - set(classes):
            raise InputError(
                f"class folder {tops[name] / unseen} is unseen in training, whose classes are {list(classes)}; "
                "remove it, or add a folder of that name to the training set"
            )
    known = {name: _examples(by_class, classes) for name, by_class in images.items()}
    whose = None if patient is None else (lambda pair: patient(pair[0].relative_to(path).as_posix()))
    return classes, complete(known, lambda pair: pair[1], seed, path, whose)


def _images_by_class(
    folder: Path, images_in: Callable[[Path], list[Path]], kinds: Collection[str]
) -> dict[str, list[Path]]:
    names = _folders(folder)
    if not names:
        what = "images but no class folders" if images_in(folder) else "neither class folders nor images"
        raise InputError(
            f"{folder} has {what}; put the images of each class in a folder of its own "
            "(for segmentation, give the folder of masks)"
        )
    images = {name: images_in(folder / name) for name in names}
    for name, files in images.items():
        if not files:
            raise InputError(
                f"class folder {folder / name} has no image ({' '.join(sorted(kinds))}); add some or remove it"
            )
    return images


def _folders(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir() if p.is_dir() and not p.name.startswith((".", "__MACOSX")))


def _examples(by_class: Mapping[str, list[Path]], classes: tuple[str, ...]) -> list[tuple[Path, int]]:
    return [(file, classes.index(name)) for name, files in by_class.items() for file in files]
