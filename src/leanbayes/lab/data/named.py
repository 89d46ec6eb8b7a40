"""What every data set with a name has: a reader, where it is published, and what may be fetched from there."""

import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from leanbayes._files import write_bytes
from leanbayes.errors import FileError, InputError
from leanbayes.lab.data.arrays import data_dir
from leanbayes.lab.data.source import Examples, Source

__all__ = ["DataSet", "Origin", "Remote", "with_classes"]


@dataclass(frozen=True)
class Remote:
    """A file that may be fetched: its address, its MD5 sum, and the files it gives under the data directory.

    An archive (.tar.gz) gives those of its members; any other file is itself the only one.
    """

    url: str
    md5: str
    gives: tuple[str, ...]


@dataclass(frozen=True)
class Origin:
    """Where a data set is published."""

    title: str
    page: str
    remotes: tuple[Remote, ...] = ()

    def find(self, folder: Path | str | None, *places: str) -> Path:
        """The first of these files or folders that is in ``folder``, by default `data_dir()`."""
        top = data_dir() if folder is None else Path(folder)
        for place in places:
            if _there(top, place):
                return top / place
        fetch = ", or ask for its download" if self.remotes else ""
        raise FileError(
            f"there is no {places[0]} in {top}; get {self.title} from {self.page} and put it there{fetch}. "
            "Another folder of data is named with LEANBAYES_DATA or --data-dir"
        )

    def fetch(self, folder: Path | str | None = None) -> None:
        """Fetch what is missing, each file checked by its sum. What is there already stays as it is."""
        top = data_dir() if folder is None else Path(folder)
        if not self.remotes:
            raise InputError(f"{self.title} cannot be fetched by a program; get it from {self.page}")
        for remote in self.remotes:
            if not all(_there(top, place) for place in remote.gives):
                _fetch(remote, top, self.page)


@dataclass(frozen=True)
class DataSet:
    """A data set with a name. It is one entry of ``data/sets``, or an entry point of the group "leanbayes.data".

    Args:
        name: the name by which users ask for it, such as "cifar10".
        read: reads it from the data directory, given as the first argument, with a keyword ``seed`` that decides what
            the published layout leaves open, such as which examples are set aside for validation.
        origin: where the set is published; None for a set that is computed.
        resizes: whether ``read`` reads files of images, and so takes ``size`` and ``track`` as `data.read` does.
    """

    name: str
    read: Callable[..., Source]
    origin: Origin | None = None
    resizes: bool = False

    def __call__(self, folder: Path | str | None = None, seed: int = 0, **options: Any) -> Source:
        """Read the set from the data directory ``folder``."""
        return self.read(folder, seed=seed, **options)


def with_classes(source: Source, names: Sequence[str]) -> Source:
    """The same with names for classes, which until now are called by their numbers."""
    numbers = source.preparation.classes
    if not all(number.isdigit() and int(number) < len(names) for number in numbers):
        raise InputError(f"{source.name} should have the classes 0 to {len(names) - 1}, got {', '.join(numbers)}")
    plan = replace(source.preparation, classes=tuple(names[int(number)] for number in numbers))
    old = (source.train, source.validation, source.test)
    train, validation, test = (Examples(part.inputs, part.targets, plan) for part in old)
    return Source(source.name, train, validation, test, plan)


def _there(top: Path, place: str) -> bool:
    """Whether a file is there; one that is published gzipped may have been unpacked."""
    return (top / place).exists() or (place.endswith(".gz") and (top / place).with_suffix("").is_file())


def _fetch(remote: Remote, top: Path, page: str) -> None:
    try:
        import pooch
    except ImportError as error:
        raise InputError("to fetch data, pip install 'leanbayes[data]', or copy the files yourself") from error
    archive = remote.url.endswith(".tar.gz")
    target = top / (remote.url.rpartition("/")[2] if archive else remote.gives[0])
    try:
        pooch.retrieve(remote.url, known_hash=f"md5:{remote.md5}", fname=target.name, path=target.parent)
        if archive:
            _unpack(target, top, remote.gives)
    except (OSError, ValueError, KeyError, EOFError, tarfile.TarError) as error:  # those of requests are OSErrors
        first = " ".join(str(error).split())
        raise FileError(f"cannot fetch {remote.url}: {first}; get it from {page} and put it in {top}") from error


def _unpack(archive: Path, top: Path, members: Sequence[str]) -> None:
    """Only what is asked for, under its own name: an archive may name any path."""
    with tarfile.open(archive) as tar:
        for name in members:
            inside = tar.extractfile(name)
            if inside is not None and not _there(top, name):
                (top / name).parent.mkdir(parents=True, exist_ok=True)
                write_bytes(top / name, inside.read())
