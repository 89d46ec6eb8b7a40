"""Data sets by name. A new one is a new file in this folder, with its reader in a dictionary called SETS."""

import importlib
import pkgutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from leanbayes.errors import InputError, UnknownName
from leanbayes.lab.data.images import Size, Track, untracked
from leanbayes.lab.data.named import DataSet
from leanbayes.lab.data.source import Source

__all__ = ["DATA", "load_data"]


def _found() -> dict[str, DataSet]:
    sets: dict[str, DataSet] = {}
    files = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]) if not module.ispkg]
    for file in files:
        found = vars(importlib.import_module(f"{__package__}.{file}")).get("SETS", {})
        for name in found.keys() & sets.keys():
            raise InputError(f"two data sets are called {name!r}; rename the one in {file}.py")
        sets |= found
    return sets


DATA = _found()
"""What `load_data` knows: each is called with the data directory and returns a `Source`."""


def load_data(
    name: str,
    folder: Path | str | None = None,
    *,
    seed: int = 0,
    size: int | Size | None = None,
    download: bool = False,
    track: Track = untracked,
) -> Source:
    """Read a data set of `DATA` from its official files.

    Args:
        name: such as "cifar10", "breastmnist", "lidc" or "uci-concrete".
        folder: the data directory; by default what LEANBAYES_DATA names, or ``data``.
        seed: of what the published split leaves open, a validation set above all; for UCI the number of the split.
        size: (height, width) to resize images to, or one number for both, of sets that are files of images.
        download: fetch files that are missing, where the source allows it; needs ``pip install 'leanbayes[data]'``.
        track: shows how far the reading of images is, such as ``rich.progress.track``.

    >>> source = load_data("lesions", seed=1)
    >>> source.name, source.usual_model, source.train[0][0].shape
    ('lesions', 'unet', torch.Size([1, 64, 64]))
    """
    if name not in DATA:
        raise UnknownName.of("data set", name, DATA)
    chosen = DATA[name]
    options: dict[str, Any] = {"track": track} if chosen.resizes else {}
    if size is not None:
        if not chosen.resizes:
            raise InputError(f"{name} is not made of files of images; leave size={size} out")
        options["size"] = size
    if download and chosen.origin is not None:
        chosen.origin.fetch(folder)
    return replace(chosen(folder, seed, **options), name=name)
