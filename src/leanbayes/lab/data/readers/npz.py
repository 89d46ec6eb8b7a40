"""Arrays in an .npz file: x and y, or x_train, y_train and so on for each set.

An array ``patient`` (or ``patient_train`` and so on) says whose each example is, and an array ``subgroup`` (or
``subgroup_train`` and so on) which subgroup it belongs to. Masks ``y`` of shape (N, raters, H, W)
are those of several raters. Images of four axes are volumes if their masks have their shape, or theirs with raters.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from leanbayes.errors import InputError
from leanbayes.lab.data.arrays import Array, array_sets, as_inputs, load_npz
from leanbayes.lab.data.patients import Patients, patients_from, subgroups_from
from leanbayes.lab.data.preparation import Preparation, statistics
from leanbayes.lab.data.rated import rated_sets
from leanbayes.lab.data.reader import Reader, ReadOptions
from leanbayes.lab.data.source import Numbered, Source, divided_rows, from_arrays, source_of
from leanbayes.lab.data.splits import SPLITS
from leanbayes.lab.data.targets import kind_of, one_axis, targets_of

__all__ = ["NPZ"]

_MOST_CHANNELS = 4  # an axis of more is one of slices
_ROWS_AT_A_TIME = 64


def _read(path: Path, options: ReadOptions) -> Source:
    arrays = load_npz(path)
    sets = {name: (x, one_axis(y, options.kind)) for name, (x, y) in array_sets(arrays, path).items()}
    patients = _labels(arrays, sets, path, None if options.groups is None else patients_from(options.groups), "patient")
    known = None if options.subgroups is None else subgroups_from(options.subgroups)
    subgroups = _labels(arrays, sets, path, known, "subgroup")
    x, y = sets["train"]
    kind = options.kind or kind_of(y)
    sides = _image_axes(x, y) if kind == "pixels" else 0
    if kind == "pixels" and y.ndim == sides + 2:
        return _rated(path, sets, sides == 3, (patients, subgroups), options)
    if options.rating is not None:
        raise InputError(
            f"rating={options.rating} is for the masks of several raters, (N, raters, ...), but {path} has y of shape "
            f"{y.shape}; leave it out"
        )
    return from_arrays(
        path,
        sets,
        kind,
        ignore=options.ignore,
        seed=options.seed,
        patients=patients,
        subgroups=subgroups,
        volumes=sides == 3,
    )


def _image_axes(x: Array, y: Array) -> int:
    """Return how many axes an image has, 2 or 3. Both x and y decide, because one axis may hold channels or slices."""
    if x.ndim == 5:
        return 3
    slices = x.ndim == 4 and min(x.shape[1], x.shape[-1]) > _MOST_CHANNELS
    return 3 if slices and x.shape[1:] in (y.shape[1:], y.shape[2:]) else 2


def _rated(
    path: Path,
    sets: Mapping[str, tuple[Array, Array]],
    volumes: bool,
    labels: tuple[Mapping[str, list[str]] | None, Mapping[str, list[str]] | None],
    options: ReadOptions,
) -> Source:
    """Make a source of masks (N, raters, ...). A mask of -1 only is that of a rater who has not seen the image."""
    lengths = {name: len(x) for name, (x, _) in sets.items()}
    rows, cases = divided_rows(lengths, [0] * lengths["train"], options.seed, path, *labels)
    chosen = {name: [part[rows[name]] for part in sets.get(name, sets["train"])] for name in SPLITS}
    inputs = {name: as_inputs(x, f"the {name} inputs of {path}", volumes) for name, (x, _) in chosen.items()}
    size = tuple(inputs["train"].shape[2:])
    present, pooled = {}, {}
    for name, (_, y) in chosen.items():
        if y.dtype.kind not in "biu" or y.shape[2:] != size:
            raise InputError(
                f"the {name} masks of {path} must be integers (N, raters, *{size}) like the images, got {y.dtype} "
                f"{y.shape}"
            )
        given = (y != -1).reshape(*y.shape[:2], -1).any(2)
        present[name] = torch.from_numpy(given)
        pooled[name] = np.where(given[(..., *[None] * len(size))], y, 0) if not given.all() else y
        unrated = np.flatnonzero(~given.any(1))
        if len(unrated):
            raise InputError(f"row {rows[name][unrated[0]]} of {path} has no rater; remove it, or add a mask")
    for rater in range(present["train"].shape[1]):
        if not any(bool(part[:, rater].any()) for part in present.values()):
            raise InputError(f"rater {rater} of {path} has no case, only masks of -1; remove this rater")
    flat = {name: y.reshape(-1, *size) for name, y in pooled.items()}
    targets = targets_of("pixels", flat, path, size, options.ignore)
    masks: dict[str, Numbered] = {
        name: targets.sets[name].to(torch.uint8 if options.ignore is None else torch.int64).view(*y.shape)
        for name, y in pooled.items()
    }
    images, raters = rated_sets(inputs, masks, present, options.rating or "random", options.seed)
    mean, std = statistics(inputs["train"].split(_ROWS_AT_A_TIME))
    plan = Preparation("pixels", mean, std, targets.classes, size=size, ignore=options.ignore)
    return source_of(path, images, raters, plan, cases)


def _labels(
    arrays: Mapping[str, Array],
    sets: Mapping[str, tuple[Array, Array]],
    path: Path,
    known: Patients | None,
    word: str,
) -> dict[str, list[str]] | None:
    """Return the patient, or the subgroup, of each row of each set; None if nothing says so."""
    if known is not None:
        return {
            name: [known(str(row) if name == "train" else f"{name}/{row}") for row in range(len(x))]
            for name, (x, _) in sets.items()
        }
    labels = {}
    for name, (x, _) in sets.items():
        keys = [*(f"{word}_{split}" for split in SPLITS[name]), *([word] if name == "train" else [])]
        array = next((arrays[key] for key in keys if key in arrays), None)
        if array is not None:
            if array.shape != (len(x),):
                raise InputError(f"{path} has {len(x)} rows in {name}, but {word}s of shape {array.shape}")
            labels[name] = [str(value) for value in array.tolist()]
    if labels and labels.keys() != sets.keys():
        raise InputError(f"{path} has {word}s for {sorted(labels)} only; save those of {sorted(sets)}")
    return labels or None


NPZ = Reader(
    "npz",
    "an .npz file",
    lambda path: path.suffix.lower() == ".npz",
    _read,
    takes=("ignore", "rating", "groups", "subgroups", "window", "patches"),
)
