"""A WebDataset: a tar archive whose members are grouped into samples by their names up to the first dot.

A sample has one image, or one array as an .npy file. Other members, such as labels, are left out. The archive is read
by the standard module tarfile, and nothing in it is written to the disk. An archive that is not compressed can be
entered in the middle, so each shard knows where its first member begins.
"""

import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from leanbayes.errors import FileError, InputError, LeanBayesError
from leanbayes.lab.data import Preparation
from leanbayes.lab.data.images import SUFFIXES, HeldImage, read_image
from leanbayes.lab.data.new_cases import NewCase
from leanbayes.lab.shards.form import Cases, Form, ListedCases, Part

__all__ = ["TAR"]

_LARGEST_MEMBER = 2**30  # bytes; an archive may claim anything


def fits(path: Path, preparation: Preparation) -> bool:  # noqa: ARG001
    """Whether its name says that it is an archive that is not compressed."""
    return path.is_file() and path.name.lower().endswith((".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.zst"))


def cut(path: Path, preparation: Preparation, size: int) -> Iterator[dict[str, Any]]:  # noqa: ARG001
    """Cut the samples, in the order of the archive."""
    offset, count, last = 0, 0, None
    with _archive(path, 0) as archive:
        for sample, member in _members(path, archive):
            if sample == last:
                continue
            if count == size:
                yield {"offset": offset, "count": count}
                count = 0
            if count == 0:
                offset = member.offset
            count, last = count + 1, sample
    if last is None:
        raise InputError(
            f"{path} has no images ({' '.join(sorted(SUFFIXES))}) and no .npy; give an archive that has some"
        )
    yield {"offset": offset, "count": count}


def read(path: Path, part: Part, preparation: Preparation) -> Cases:
    """Read the samples of a part."""
    names: list[str] = []
    cases: list[NewCase] = []
    with _archive(path, part["offset"]) as archive:
        for sample, member in _members(path, archive):
            if names and names[-1] == sample:
                raise InputError(
                    f"sample {sample} of {path} has two inputs; leave one image or one .npy in each sample"
                )
            if len(names) == part["count"]:
                break
            file = archive.extractfile(member)
            data = b"" if file is None else file.read()
            names.append(sample)
            cases.append(_case(sample, f"{path}: {member.name}", data, preparation))
    return ListedCases(names, cases)


def _case(name: str, what: str, data: bytes, preparation: Preparation) -> NewCase:
    if not what.lower().endswith(".npy"):
        if preparation.size is None:
            raise InputError(f"{what} is an image, but the model takes {len(preparation.features)} features")
        image = HeldImage(data, what)
        pixels = read_image(image, len(preparation.mean))
        return NewCase(name, preparation.picture(image), tuple(pixels.shape[1:]), read=lambda: pixels)
    try:
        values = np.load(io.BytesIO(data), allow_pickle=False)
    except Exception as error:  # numpy raises many kinds for damaged files
        raise FileError(f"cannot read {what}: it is damaged or holds Python objects; save a plain array") from error
    x = preparation.array(np.asarray(values), what)
    return NewCase(name, x, read=lambda: preparation.original(x))


@contextmanager
def _archive(path: Path, offset: int) -> Iterator[tarfile.TarFile]:
    """Open an archive at a member."""
    if path.suffix.lower() != ".tar":
        raise InputError(
            f"{path} is compressed, so no worker could begin in the middle; unpack it to a plain .tar first"
        )
    try:
        with path.open("rb") as file:
            file.seek(offset)
            with tarfile.open(fileobj=file, mode="r:") as archive:
                yield archive
    except LeanBayesError:
        raise
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise FileError(f"cannot read {path}: {error}; copy it again") from error


def _members(path: Path, archive: tarfile.TarFile) -> Iterator[tuple[str, tarfile.TarInfo]]:
    """Yield the inputs of an archive with the names of their samples."""
    while (member := archive.next()) is not None:
        archive.members = []  # type: ignore[attr-defined]  # it would keep all that it has passed, perhaps millions
        name = PurePosixPath(member.name)
        if not member.isfile() or name.suffix.lower() not in (*SUFFIXES, ".npy") or name.name.startswith("."):
            continue
        if member.size > _LARGEST_MEMBER:
            raise FileError(
                f"{path}: {member.name} claims {member.size:,} bytes, more than {_LARGEST_MEMBER:,} are read"
            )
        yield str(name.with_name(name.name.partition(".")[0])), member
    file: Any = archive.fileobj
    file.seek(archive.offset)
    if file.read(tarfile.BLOCKSIZE).strip(b"\0"):  # tarfile takes a damaged header for the end of the archive
        raise FileError(f"{path} is damaged at byte {archive.offset:,}; copy it again")


TAR = Form("tar", "a WebDataset (.tar)", fits, cut, read, order=1)
