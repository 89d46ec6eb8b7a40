"""A data set with a name: how it is read, where it is published, and which of its files can be fetched from there."""

import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from leanbayes._files import write_bytes
from leanbayes.errors import FileError, InputError, MissingPackage
from leanbayes.lab.data.arrays import data_dir
from leanbayes.lab.data.expansion import tar_members
from leanbayes.lab.data.source import Examples, Source

__all__ = ["DataSet", "Origin", "Remote", "with_classes"]


@dataclass(frozen=True)
class Remote:
    """A file that can be fetched.

    Args:
        url: the address of the file.
        md5: the MD5 sum of the file, as its publisher states it.
        gives: the files under the data directory that come from it. For an archive (.tar.gz) they are members of it.
            Any other file gives one file, which is itself.
    """

    url: str
    md5: str
    gives: tuple[str, ...]


@dataclass(frozen=True)
class Origin:
    """Where a data set is published.

    Args:
        title: the name of the data set in messages.
        page: the web page on which people find the data.
        remotes: the files that a program may fetch; empty if the publisher asks people to register.
    """

    title: str
    page: str
    remotes: tuple[Remote, ...] = ()

    def find(self, folder: Path | str | None, *paths: str) -> Path:
        """Return the first of several files or folders that exists in the data directory.

        Args:
            folder: the data directory, by default `data_dir()`.
            *paths: paths inside the data directory, of which the first is named if none exists.
        """
        top = data_dir() if folder is None else Path(folder)
        for path in paths:
            if _exists(top, path):
                return top / path
        fetch = ", or ask for its download" if self.remotes else ""
        raise FileError(
            f"there is no {paths[0]} in {top}; get {self.title} from {self.page} and put it there{fetch}. "
            "Another folder of data is named with LEANBAYES_DATA or --data-dir"
        )

    def fetch(self, folder: Path | str | None = None) -> None:
        """Fetch the files that are missing, and check the MD5 sum of each. Files that exist stay as they are."""
        top = data_dir() if folder is None else Path(folder)
        if not self.remotes:
            raise InputError(f"{self.title} cannot be fetched by a program; get it from {self.page}")
        for remote in self.remotes:
            if not all(_exists(top, path) for path in remote.gives):
                _fetch(remote, top, self.page)


@dataclass(frozen=True)
class DataSet:
    """A data set with a name. It lies in a module of ``data/sets``, or behind an entry point of "leanbayes.data".

    Args:
        name: the name by which users ask for it, such as "cifar10".
        read: reads the set. Its first argument is the data directory. Its keyword ``seed`` decides what the published
            layout leaves open, such as which examples are set aside for validation.
        origin: where the set is published; None for a set that is computed.
        resizes: whether ``read`` reads image files, and so takes ``size`` and ``track`` as `data.read` does.
    """

    name: str
    read: Callable[..., Source]
    origin: Origin | None = None
    resizes: bool = False

    def __call__(self, folder: Path | str | None = None, seed: int = 0, **options: Any) -> Source:
        """Read the set from the data directory ``folder``."""
        return self.read(folder, seed=seed, **options)


def with_classes(source: Source, names: Sequence[str]) -> Source:
    """Return the same source with names for its classes, which were numbers so far."""
    numbers = source.preparation.classes
    if not all(number.isdigit() and int(number) < len(names) for number in numbers):
        raise InputError(f"{source.name} should have the classes 0 to {len(names) - 1}, got {', '.join(numbers)}")
    plan = replace(source.preparation, classes=tuple(names[int(number)] for number in numbers))
    train, validation, test = (
        Examples(part.inputs, part.targets, plan) for part in (source.train, source.validation, source.test)
    )
    return Source(source.name, train, validation, test, plan)


def _exists(top: Path, path: str) -> bool:
    """Return whether a file exists, or its unpacked form if it is published gzipped."""
    return (top / path).exists() or (path.endswith(".gz") and (top / path).with_suffix("").is_file())


def _fetch(remote: Remote, top: Path, page: str) -> None:
    try:
        import pooch
    except ImportError as error:
        raise MissingPackage.of("fetching data", "pooch", "data") from error
    archive = remote.url.endswith(".tar.gz")
    target = top / (remote.url.rpartition("/")[2] if archive else remote.gives[0])
    try:
        pooch.retrieve(remote.url, known_hash=f"md5:{remote.md5}", fname=target.name, path=target.parent)
        if archive:
            _unpack(target, top, remote.gives)
    except (OSError, ValueError, KeyError, EOFError, tarfile.TarError) as error:  # those of requests are OSErrors
        reason = " ".join(str(error).split())
        raise FileError(f"cannot fetch {remote.url}: {reason}; get it from {page} and put it in {top}") from error


def _unpack(archive: Path, top: Path, names: Sequence[str]) -> None:
    """Write the named members below ``top``. Other members are not written, because an archive may name any path."""
    with tarfile.open(archive) as tar:
        missing = set(names)
        for name, content in tar_members(tar, archive, names):
            missing.discard(name)
            if not _exists(top, name):
                (top / name).parent.mkdir(parents=True, exist_ok=True)
                write_bytes(top / name, content)
    if missing:
        raise KeyError(f"the archive has no {', '.join(sorted(missing))}")
