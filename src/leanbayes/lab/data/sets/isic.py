"""Skin lesions and their masks from the ISIC challenges of 2017 and 2018, in the challenges' own folders."""

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
    """Lesions in ``ISIC2017/ISIC-2017_Training_Data``, masks in ``..._Part1_GroundTruth``; 224x224.

    Validation (150 images) and test (600) are the challenge's own; what is not there is drawn from training by seed.
    """
    path = _ORIGINS[2017].find(folder, "ISIC2017/ISIC-2017_Training_Data").parent
    return read(path, kind="pixels", size=size, seed=seed, track=track)


def isic2018(
    folder: Path | str | None = None, seed: int = 0, *, size: int | Size = 224, track: Track = untracked
) -> Source:
    """Lesions in ``ISIC2018/ISIC2018_Task1-2_Training_Input``, masks in ``ISIC2018_Task1_Training_GroundTruth``.

    Validation (100 images) and test (1000) are the challenge's own; what is not there is drawn from training by seed.
    """
    path = _ORIGINS[2018].find(folder, "ISIC2018/ISIC2018_Task1-2_Training_Input").parent
    return read(path, kind="pixels", size=size, seed=seed, track=track)


SETS = (
    DataSet("isic2017", isic2017, _ORIGINS[2017], resizes=True),
    DataSet("isic2018", isic2018, _ORIGINS[2018], resizes=True),
)
