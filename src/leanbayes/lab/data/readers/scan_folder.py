"""A folder of scans, NIfTI files or DICOM series: with a folder of masks, with one for each rater, or by classes."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from leanbayes.errors import InputError
from leanbayes.lab.data.folders import class_folders
from leanbayes.lab.data.images import Size
from leanbayes.lab.data.masks import empty_masks, label_count, mask_folders
from leanbayes.lab.data.patients import PatientOf, composed, patients_from, subgroups_from, without_suffix
from leanbayes.lab.data.preparation import Preparation, statistics
from leanbayes.lab.data.rated import rated_sets
from leanbayes.lab.data.reader import Reader, ReadOptions
from leanbayes.lab.data.scan_sets import RatedScan, ScanFiles, ScanMasks
from leanbayes.lab.data.scans import DICOM, NIFTI, has_scans, scan_files
from leanbayes.lab.data.source import Cases, Numbered, Source, source_of
from leanbayes.lab.data.splits import complete, split_folders

__all__ = ["SCANS"]

_ENDINGS = ("", "_segmentation", "_seg", "_mask", "_label", "_labels", "_gt")
_FIRST_CHANNEL, _SECOND_CHANNEL = "_0000", "_0001"  # how nnU-Net names the channels of a scan


class OneRater:
    """The only mask of each scan, as class indices."""

    def __init__(self, masks: ScanMasks) -> None:
        self.masks = masks

    def __len__(self) -> int:
        return len(self.masks)

    def __getitem__(self, index: int) -> Tensor:
        return self.masks[index][0].long()


def _read(path: Path, options: ReadOptions) -> Source:
    if options.kind not in (None, "classes", "pixels"):
        raise InputError(f"{path} is a folder of scans, which has no {options.kind!r}; choose classes or pixels")
    if options.raters is not None:
        tops = split_folders(path) or {"train": path}
        return _segmented(path, {name: _rated(top, path, options.raters) for name, top in tops.items()}, options)
    if options.rating is not None:
        raise InputError(f"rating={options.rating} is for several raters; give a folder of masks for each with raters=")
    folders = {} if options.kind == "classes" else _mask_folders(path, options.masks)
    if folders:
        pairs = {name: _rated(images, images, [masks]) for name, (images, masks) in folders.items()}
        return _segmented(path, pairs, options)
    return _classified(path, options)


def _mask_folders(path: Path, masks: Path | None) -> dict[str, tuple[Path, Path]]:
    if masks is None and (path / "imagesTr").is_dir() and (path / "labelsTr").is_dir():  # as in Medical Decathlon
        return {"train": (path / "imagesTr", path / "labelsTr")}
    return mask_folders(path, masks)


def _segmented(path: Path, known: Mapping[str, list[RatedScan]], options: ReadOptions) -> Source:
    patient = None if options.groups is None else patients_from(options.groups)
    whose = None if patient is None else (lambda rated: patient(_name(rated[0], path)))
    sets = complete(known, lambda _: 0, options.seed, path, whose)
    for number, folder in enumerate(options.raters or ()):
        if not any(masks[number] is not None for rated in sets.values() for _, masks in rated):
            raise InputError(f"the rater {folder} has no case; add masks, or leave this rater out")
    scans = _scans({name: [scan for scan, _ in rated] for name, rated in sets.items()}, options)
    masks = {name: ScanMasks(rated, scans[name], options.track) for name, rated in sets.items()}
    others = [files.first_with for name, files in masks.items() if name != "train"]
    count, binary = label_count(masks["train"].first_with, others, options.ignore)
    for files in masks.values():
        files.binary = binary
    classes = ("background", "foreground") if binary or count == 2 else tuple(map(str, range(count)))
    inputs: Mapping[str, Numbered] = scans
    targets: Mapping[str, Numbered] = {name: OneRater(files) for name, files in masks.items()}
    if options.raters is not None:
        present = {name: files.present for name, files in masks.items()}
        inputs, targets = rated_sets(scans, masks, present, options.rating or "random", options.seed)
    plan = _plan("pixels", classes, scans, options)
    empty = [scan for files in masks.values() for scan in files.empty]
    remarks = empty_masks(empty, sum(map(len, masks.values())))
    return source_of(path, inputs, targets, plan, _cases(scans, path, patient, options), remarks)


def _classified(path: Path, options: ReadOptions) -> Source:
    patient = None if options.groups is None else patients_from(options.groups)
    classes, sets = class_folders(path, options.seed, patient, scan_files, (*NIFTI, *DICOM))
    scans = _scans({name: [scan for scan, _ in pairs] for name, pairs in sets.items()}, options)
    targets = {name: torch.tensor([label for _, label in pairs]) for name, pairs in sets.items()}
    if options.window is not None:
        raise InputError("window= is for segmentation, but these scans have classes; give spacing= instead")
    plan = _plan("classes", classes, scans, options)
    return source_of(path, scans, targets, plan, _cases(scans, path, patient, options))


def _scans(paths: Mapping[str, list[Path]], options: ReadOptions) -> dict[str, ScanFiles]:
    """Read the scans of all sets, which must be alike in spacing and, without windows, in size."""
    everything = ScanFiles([path for part in paths.values() for path in part], options.spacing, options.track)
    if options.window is None and len(set(everything.sizes)) > 1:
        other = next(row for row, size in enumerate(everything.sizes) if size != everything.sizes[0])
        raise InputError(
            f"scan {everything.paths[other]} has {_by(everything.sizes[other])} voxels, but {everything.paths[0]} has "
            f"{_by(everything.sizes[0])}; give a window to train on, such as window={_usual_window(everything.sizes)}"
        )
    parts, start = {}, 0
    for name, part in paths.items():
        parts[name] = everything.part(range(start, start + len(part)))
        start += len(part)
    return parts


def _plan(kind: str, classes: tuple[str, ...], scans: Mapping[str, ScanFiles], options: ReadOptions) -> Preparation:
    train = scans["train"]
    mean, std = statistics(train[row][None].float() for row in range(len(train)))
    return Preparation(
        kind,  # type: ignore[arg-type]
        mean,
        std,
        classes,
        size=train.sizes[0],
        ignore=options.ignore,
        spacing=train.image_spacing,
        resample=options.spacing is not None,
    )


def _rated(top: Path, images: Path, raters: Sequence[Path]) -> list[RatedScan]:
    """Return each scan below ``top`` with its mask by each rater, which has the scan's path in ``images``."""
    mask_of = []
    for folder in raters:
        if not folder.is_dir():
            raise InputError(f"there is no folder {folder} of masks; give one that exists")
        files = ((file.relative_to(folder).as_posix(), file) for file in scan_files(folder))
        mask_of.append({composed(without_suffix(name)): file for name, file in files})
        if not mask_of[-1]:
            raise InputError(f"{folder} has no masks ({' '.join(NIFTI)}); add them, or leave this rater out")
    rated: list[RatedScan] = []
    for scan in scan_files(top):
        stem = _stem(scan, images)
        masks = [next((of.pop(stem + end) for end in _ENDINGS if stem + end in of), None) for of in mask_of]
        if not any(masks):
            raise InputError(f"scan {scan} has no mask in {' or '.join(map(str, raters))}; it would be {stem}.nii.gz")
        rated.append((scan, masks))
    if not rated:
        raise InputError(f"{top} has no scans; add NIfTI files or folders of DICOM series")
    if top == images:
        for left in mask_of:
            for mask in left.values():
                raise InputError(f"mask {mask} has no scan in {images}; add it or remove the mask")
    return rated


def _stem(scan: Path, images: Path) -> str:
    name = composed(scan.relative_to(images).as_posix())
    name = without_suffix(name) if scan.is_file() else name
    if name.endswith(_SECOND_CHANNEL):
        raise InputError(
            f"{scan} is a second channel in a file of its own; save all channels in one file, (X, Y, Z, C)"
        )
    return name.removesuffix(_FIRST_CHANNEL)


def _cases(
    scans: Mapping[str, ScanFiles], path: Path, patient: PatientOf | None, options: ReadOptions
) -> dict[str, Cases]:
    subgroup = None if options.subgroups is None else subgroups_from(options.subgroups)
    return {
        name: Cases.of([_name(file, path) for file in files.paths], patient, subgroup) for name, files in scans.items()
    }


def _name(file: Path, path: Path) -> str:
    return (file.relative_to(path) if file.is_relative_to(path) else Path(file.name)).as_posix()


def _usual_window(sizes: Sequence[Size]) -> str:
    smallest = [min(size[axis] for size in sizes) for axis in range(len(sizes[0]))]
    return " ".join(str(max(16, 16 * (side // 16))) for side in smallest)


def _by(size: Size) -> str:
    return "x".join(map(str, size))


SCANS = Reader(
    "scans",
    "a folder of scans",
    lambda path: path.is_dir() and has_scans(path),
    _read,
    takes=("masks", "ignore", "raters", "rating", "groups", "subgroups", "window", "spacing", "patches"),
)
