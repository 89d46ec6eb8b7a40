"""The catalogue of data sets, and `load_data`, which reads one of them by its name."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from leanbayes._catalogue import Catalogue
from leanbayes.errors import InputError
from leanbayes.lab.data.images import Size, Track, untracked
from leanbayes.lab.data.named import DataSet
from leanbayes.lab.data.source import Source

__all__ = ["DATA", "load_data"]

DATA: Catalogue[DataSet] = Catalogue(
    "data set",
    lambda value: value.name if isinstance(value, DataSet) else None,
    package="leanbayes.lab.data.sets",
    group="leanbayes.data",
)
"""Every data set that `load_data` knows, by name."""


def load_data(
    name: str,
    folder: Path | str | None = None,
    *,
    seed: int = 0,
    size: int | Size | None = None,
    download: bool = False,
    track: Track = untracked,
) -> Source:
    """Read a data set that has a name from its official files.

    Args:
        name: the name of the set, such as "cifar10", "breastmnist", "lidc" or "uci-concrete".
        folder: the data directory. By default the environment variable LEANBAYES_DATA names it, or it is ``data``.
        seed: decides what the published split leaves open, above all the validation set. For UCI tables it is the
            number of the split.
        size: (height, width) to which images are resized, or one number for both. Only sets of image files take it.
        download: fetch missing files, where the publisher allows it. This needs ``pip install 'leanbayes[data]'``.
        track: shows the progress of reading images, such as ``rich.progress.track``.

    >>> source = load_data("lesions", seed=1)
    >>> source.name, source.usual_model, source.train[0][0].shape
    ('lesions', 'unet', torch.Size([1, 64, 64]))
    """
    chosen = DATA.named(name)
    options: dict[str, Any] = {"track": track} if chosen.resizes else {}
    if size is not None:
        if not chosen.resizes:
            raise InputError(f"{name} does not consist of image files, so it cannot be resized; leave size={size} out")
        options["size"] = size
    if download and chosen.origin is not None:
        chosen.origin.fetch(folder)
    return replace(chosen(folder, seed, **options), name=name)
