"""A reader: the object that reads one form of data, such as a folder of images or a CSV file."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from leanbayes.lab.data.images import Size, Track, untracked
from leanbayes.lab.data.preparation import Kind
from leanbayes.lab.data.rated import Rating
from leanbayes.lab.data.source import Source

__all__ = ["ReadOptions", "Reader"]


@dataclass(frozen=True)
class ReadOptions:
    """The options of a reader. `leanbayes.lab.data.read` explains each of them."""

    kind: Kind | None = None
    masks: Path | None = None
    target: str | None = None
    size: Size | None = None
    ignore: int | None = None
    raters: tuple[Path, ...] | None = None
    rating: Rating | None = None
    groups: str | None = None
    subgroups: str | None = None
    window: Size | None = None
    patches: int | None = None
    spacing: tuple[float, ...] | None = None
    seed: int = 0
    track: Track = untracked


@dataclass(frozen=True)
class Reader:
    """A reader of one form of data. It lies in ``data/readers``, or behind an entry point of "leanbayes.readers".

    Args:
        name: the name of the form, such as "npz".
        form: what the form is called in messages, such as "an .npz file".
        accepts: returns whether this reader can read what lies at a path.
        read: reads it into a `Source`.
        takes: the options besides ``kind``, ``seed`` and ``track`` that make sense for this form. Others are refused.
    """

    name: str
    form: str
    accepts: Callable[[Path], bool]
    read: Callable[[Path, ReadOptions], Source]
    takes: tuple[str, ...] = ()
