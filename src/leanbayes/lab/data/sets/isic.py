"""Skin lesions and their masks from the ISIC challenges of 2017 and 2018, in the folders of the challenges."""

from pathlib import Path

from leanbayes.lab.data.images import Size, Track, untracked
from leanbayes.lab.data.named import DataSet, Origin
from leanbayes.lab.data.reading import read
from leanbayes.lab.data.source import Source

__all__ = ["isic2017", "isic2018"]

_ORIGINS = {year: Origin(f"ISIC {year}", f"https://challenge.isic-archive.com/data/#{year}") for year in (2017, 2018)}


def isic2017(
    folder: Path | str | None = None, seed: int = 0, *, size: int | Size = 224, track: Track = untracked
) -> Source:
    """Read ISIC 2017 from ``ISIC2017/ISIC-2017_Training_Data`` and the folders of masks beside it.

    The challenge has 150 images for validation and 600 for the test. A set that is missing is drawn from the training
    images.

    Args:
        folder: the data directory, by default `data_dir()`.
        seed: decides which images are drawn for a missing set.
        size: (height, width) to which images are resized, or one number for both. The default is that of
            Abboud et al. 2024.
        track: shows the progress of reading images.
    """
    path = _ORIGINS[2017].find(folder, "ISIC2017/ISIC-2017_Training_Data").parent
    return read(path, kind="pixels", size=size, seed=seed, track=track)


def isic2018(
    folder: Path | str | None = None, seed: int = 0, *, size: int | Size = 224, track: Track = untracked
) -> Source:
    """Read ISIC 2018 from ``ISIC2018/ISIC2018_Task1-2_Training_Input`` and the folders of masks beside it.

    The challenge has 100 images for validation and 1000 for the test. A set that is missing is drawn from the training
    images.

    Args:
        folder: the data directory, by default `data_dir()`.
        seed: decides which images are drawn for a missing set.
        size: (height, width) to which images are resized, or one number for both. The default is that of
            Abboud et al. 2024.
        track: shows the progress of reading images.
    """
    path = _ORIGINS[2018].find(folder, "ISIC2018/ISIC2018_Task1-2_Training_Input").parent
    return read(path, kind="pixels", size=size, seed=seed, track=track)


SETS = (
    DataSet("isic2017", isic2017, _ORIGINS[2017], resizes=True),
    DataSet("isic2018", isic2018, _ORIGINS[2018], resizes=True),
)
