"""Limits on how much a file may claim to hold.

A file of a few megabytes can unpack to many gigabytes, by accident or because someone wants to stop a machine. Readers
therefore compare what a file claims with its size before they unpack it.
"""

import struct
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from leanbayes.errors import FileError, ForeignFile

__all__ = ["MOST_MEMBERS", "check_mat", "check_npz", "largest_expansion", "tar_members"]

MOST_MEMBERS = 10_000
"""How many files one archive may hold."""

_ALWAYS_ALLOWED = 2**30  # bytes
_MOST_EXPANSION = 50  # times the size of the file; images and masks of real data sets stay far below
_LONGEST_ARRAY_HEADER = 2**16
_MAT_HEADER, _MAT_COMPRESSED = 128, 15  # the length of a .mat file's header, and the type of a compressed variable
_BYTE_ORDERS = {b"IM": "<II", b"MI": ">II"}
_CHUNK = 2**16


def largest_expansion(packed: int) -> int:
    """Return how many bytes a file of ``packed`` bytes may unpack to: 1 GiB, or 50 times its size if that is more.

    >>> largest_expansion(3_000_000) == 2**30, largest_expansion(10**9)
    (True, 50000000000)
    """
    return max(_ALWAYS_ALLOWED, _MOST_EXPANSION * packed)


def check_npz(path: Path) -> None:
    """Refuse an .npz file that unpacks to too much, has too many members, or whose arrays claim more than they hold."""
    limit = largest_expansion(path.stat().st_size)
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if len(members) > MOST_MEMBERS:
            raise FileError(f"{path} has {len(members)} members, more than {MOST_MEMBERS}; save fewer, larger arrays")
        unpacked = sum(member.file_size for member in members)
        if unpacked > limit:
            advice = "if its size is right, save it with numpy.savez, which does not compress"
            raise _too_large(path, unpacked, limit, advice)
        for member in members:
            if member.filename.endswith(".npy"):
                _check_array(path, archive, member)


def check_mat(path: Path) -> None:
    """Refuse a MATLAB file (version 5) whose compressed variables unpack to too much.

    The format states no unpacked size. The function therefore unpacks each variable in small parts and only counts the
    bytes. The reader finds any other damage.
    """
    limit = largest_expansion(path.stat().st_size)
    unpacked = 0
    with path.open("rb") as file:
        order = _BYTE_ORDERS.get(file.read(_MAT_HEADER)[-2:])
        if order is None:
            raise ForeignFile(f"{path} is damaged or no MATLAB file of version 5; copy it again")
        while len(tag := file.read(8)) == 8:
            variable, length = struct.unpack(order, tag)
            if variable != _MAT_COMPRESSED:
                file.seek(length, 1)
                continue
            stream = zlib.decompressobj()
            while length > 0 and (packed := file.read(min(_CHUNK, length))):
                length -= len(packed)
                while packed:
                    unpacked += len(stream.decompress(packed, 16 * _CHUNK))
                    packed = stream.unconsumed_tail
                    if unpacked > limit:
                        raise _too_large(path, unpacked, limit, "copy it again")


def tar_members(archive: tarfile.TarFile, path: Path, names: Collection[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of those members of a tar archive that are asked for.

    The function refuses an archive that has too many members or unpacks to too much. It stops at the member that passes
    the limit, before it unpacks that member.

    Args:
        archive: the open archive.
        path: its file, whose size sets the limit.
        names: the names of the members to read. Members with other names are skipped.
    """
    limit = largest_expansion(path.stat().st_size)
    unpacked = 0
    for number, member in enumerate(archive):
        unpacked += member.size
        if number >= MOST_MEMBERS:
            raise FileError(f"{path} has more than {MOST_MEMBERS} members; copy it again")
        if unpacked > limit:
            raise _too_large(path, unpacked, limit, "copy it again")
        content = archive.extractfile(member) if member.name in names else None
        if content is not None:
            yield member.name, content.read()


def _check_array(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Refuse an array whose header claims more bytes than the member holds: numpy would reserve them at once."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file, max_header_size=_LONGEST_ARRAY_HEADER)
    claimed = dtype.itemsize
    for length in shape:
        claimed *= int(length)
    if claimed > member.file_size and not dtype.hasobject:
        raise FileError(f"array {member.filename!r} of {path} claims {claimed} bytes but has {member.file_size}")


def _too_large(path: Path, unpacked: int, limit: int, advice: str) -> FileError:
    return FileError(
        f"{path} would unpack to {unpacked / 2**30:.1f} GiB, more than the {limit / 2**30:.1f} GiB allowed for "
        f"a file of its size; {advice}"
    )
