"""How much memory a compressed file may ask for when it is unpacked.

A file of a few megabytes can unpack to many gigabytes, by accident or in order to stop a machine. Readers therefore ask
for the declared size before they unpack anything.
"""

import zipfile
from pathlib import Path

import numpy as np

from leanbayes.errors import FileError

__all__ = ["MOST_MEMBERS", "check_npz", "largest_expansion"]

_ALWAYS_ALLOWED = 2**30  # bytes
_MOST_EXPANSION = 50  # times the size of the file; images and masks of real data sets stay far below
MOST_MEMBERS = 10_000
_LONGEST_ARRAY_HEADER = 2**16


def largest_expansion(packed: int) -> int:
    """Return how many bytes a file of ``packed`` bytes may unpack to: 1 GiB, or 50 times its size if that is more.

    >>> largest_expansion(3_000_000) == 2**30, largest_expansion(10**9)
    (True, 50000000000)
    """
    return max(_ALWAYS_ALLOWED, _MOST_EXPANSION * packed)


def check_npz(path: Path) -> None:
    """Refuse an .npz file that unpacks to too much, has too many members, or whose arrays claim more than is there."""
    limit = largest_expansion(path.stat().st_size)
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if len(members) > MOST_MEMBERS:
            raise FileError(f"{path} has {len(members)} members, more than {MOST_MEMBERS}; save fewer, larger arrays")
        unpacked = sum(member.file_size for member in members)
        if unpacked > limit:
            raise FileError(
                f"{path} would unpack to {unpacked / 2**30:.1f} GiB, more than the {limit / 2**30:.1f} GiB allowed for "
                "a file of its size; if its size is right, save it with numpy.savez, which does not compress"
            )
        for member in members:
            if member.filename.endswith(".npy"):
                _check_array(path, archive, member)


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
