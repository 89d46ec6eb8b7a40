"""`read` finds the reader for the data of a user, and checks that the options suit it."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from leanbayes._catalogue import Catalogue
from leanbayes.errors import FileError, InputError, UnknownName
from leanbayes.lab.data.images import Size, Track, untracked
from leanbayes.lab.data.preparation import Kind
from leanbayes.lab.data.rated import Rating
from leanbayes.lab.data.reader import Reader, ReadOptions
from leanbayes.lab.data.source import Source
from leanbayes.lab.data.windows import windowed

__all__ = ["READERS", "read"]

_PATCHES = 4  # windows of each image in an epoch

READERS: Catalogue[Reader] = Catalogue(
    "data reader",
    lambda value: value.name if isinstance(value, Reader) else None,
    package="leanbayes.lab.data.readers",
    group="leanbayes.readers",
)
"""Every reader of data, by its name."""


def read(
    path: Path | str,
    *,
    kind: Kind | None = None,
    masks: Path | str | None = None,
    target: str | None = None,
    size: int | Size | None = None,
    ignore: int | None = None,
    raters: Sequence[Path | str] | None = None,
    rating: Rating | None = None,
    groups: str | None = None,
    subgroups: str | None = None,
    window: Sequence[int] | None = None,
    patches: int | None = None,
    spacing: Sequence[float] | None = None,
    seed: int = 0,
    track: Track = untracked,
) -> Source:
    """Read a user's own data: a folder of class folders, of images or scans with masks, an .npz file or a CSV file.

    Folders named train, validation (or val) and test, or arrays named x_train, y_train and so on, say which examples
    belong to which set. Missing sets are drawn class by class: 15 % for validation and 15 % for the test. Inputs, and
    the targets of a regression, are standardised by the mean and deviation of the training set.

    Args:
        path: the folder or the file.
        kind: what is predicted, if the data do not decide it: "classes", "labels" (several yes-or-no answers),
            "pixels" or "regression".
        masks: the folder of masks, if ``path`` is a folder of images. A mask has the name of its image, and holds class
            indices or the values 0 and 255.
        target: the column of a CSV file that is predicted. All other columns are features.
        size: (height, width) to which images are resized, or one number for both. By default all must be alike.
        ignore: the value of mask pixels that do not count.
        raters: a folder of masks for each rater, instead of ``masks``. A rater may lack images.
        rating: how several raters are learnt from: "random" (a random rater in each step) or "all".
        groups: whose each example is: a CSV file of names and patients, or a pattern in the names of the files (see
            `leanbayes.lab.data.patients.patients_from`). For a table it is the column of the patients. No patient is
            then in two sets.
        subgroups: the subgroup of each example, such as its hospital, in the same forms; a subgroup may be in all sets.
            Comparisons show the coverage of each, and ``+conformal:per=group`` guarantees it. Of a table it is a
            column, which is then no feature.
        window: the sides of the windows on which segmentation is trained. Whole images are then predicted by sliding
            windows, and may differ in size.
        patches: how many windows of each image an epoch has, by default 4.
        spacing: the distance of voxels in millimetres (right, front, up) to which scans are brought. By default all
            must have one spacing.
        seed: decides which examples are drawn for missing sets.
        track: shows the progress of reading images, such as ``rich.progress.track``.
    """
    where = Path(path)
    if kind is not None and kind not in get_args(Kind):
        raise UnknownName.of("kind", kind, get_args(Kind))
    if not where.exists():
        raise FileError(f"there is no file or folder {where}; check the path")
    reader = _reader_for(where)
    options = ReadOptions(
        kind=kind,
        masks=None if masks is None else Path(masks),
        target=target,
        size=_sides(size),
        ignore=ignore,
        raters=None if raters is None else tuple(map(Path, raters)),
        rating=rating,
        groups=groups,
        subgroups=subgroups,
        window=None if window is None else tuple(window),
        patches=patches,
        spacing=None if spacing is None else _distances(spacing),
        seed=seed,
        track=track,
    )
    if rating is not None and rating not in get_args(Rating):
        raise UnknownName.of("rating", rating, get_args(Rating))
    if masks is not None and raters is not None:
        raise InputError("masks= and raters= are both given; the masks of several raters need raters= only")
    names = ("masks", "target", "size", "ignore", "raters", "rating", "groups", "subgroups", "window", "patches")
    for name in (*names, "spacing"):
        value = getattr(options, name)
        if value is not None and name not in reader.takes:
            shown = size if name == "size" else value
            forms = " or ".join(other.form for other in READERS.values() if name in other.takes)
            raise InputError(f"{name}={shown} is for {forms} only; leave it out for {where}, which is {reader.form}")
    source = reader.read(where, options)
    if ignore is not None and source.preparation.kind != "pixels":
        raise InputError(f"ignore={ignore} is for masks only; leave it out for {where}")
    if options.window is not None:
        return windowed(source, options.window, _PATCHES if patches is None else patches, seed)
    if patches is not None:
        raise InputError(f"patches={patches} is the number of windows of an image; give their size with window=")
    return source


def _reader_for(path: Path) -> Reader:
    for reader in READERS.values():
        if reader.accepts(path):
            return reader
    forms = ", ".join(reader.form for reader in READERS.values())
    raise InputError(f"cannot learn from {path}; give one of: {forms}")


def _distances(spacing: Sequence[float]) -> tuple[float, ...]:
    steps = tuple(float(step) for step in spacing)
    if len(steps) != 3 or not all(0 < step < math.inf for step in steps):
        raise InputError(f"spacing must be three positive numbers in millimetres, got {' '.join(map(str, spacing))}")
    return steps


def _sides(size: int | Size | None) -> Size | None:
    sides = (size, size) if isinstance(size, int) else size
    if sides is not None and (len(sides) != 2 or min(sides) < 1):
        raise InputError(f"size must be a positive number or a pair (height, width), got {size}")
    return sides
