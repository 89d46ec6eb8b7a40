"""Files that unpack to far more than their size are refused before anything is unpacked."""

import gzip
import io
import resource
import struct
import tarfile
import zipfile
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from leanbayes.errors import FileError
from leanbayes.lab.data.arrays import load_npz, read_idx
from leanbayes.lab.data.expansion import MOST_MEMBERS, check_mat, tar_members


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def npy_header(shape: tuple[int, ...], dtype: str = "|u1") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


def test_a_small_npz_that_unpacks_to_gigabytes_is_refused(tmp_path: Path) -> None:
    """Version 0.1 unpacked such a file of 2.8 MB to 3 GB."""
    path = tmp_path / "bomb.npz"
    chunk = bytes(2**24)
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x.npy", "w") as member,
    ):
        member.write(npy_header((96 * 2**24,)))
        for _ in range(96):
            member.write(chunk)
    before = peak_memory()
    with pytest.raises(FileError, match=r"would unpack to 1\.5 GiB, more than the 1\.0 GiB"):
        load_npz(path)
    assert peak_memory() - before < 2**27


def test_an_array_that_claims_more_than_it_has_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "claims.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", npy_header((10**12,)) + bytes(10))
    with pytest.raises(FileError, match="claims 1000000000000 bytes but has"):
        load_npz(path)


def test_too_many_members_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "many.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(MOST_MEMBERS + 1):
            archive.writestr(f"a{number}.npy", b"")
    with pytest.raises(FileError, match=f"has {MOST_MEMBERS + 1} members"):
        load_npz(path)


def test_a_gzipped_idx_file_is_read_no_further_than_it_claims(tmp_path: Path) -> None:
    path = tmp_path / "bomb-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x01" + (5).to_bytes(4, "big") + bytes(2**26)))
    before = peak_memory()
    with pytest.raises(FileError, match="damaged"):
        read_idx(path)
    assert peak_memory() - before < 2**25
    path.write_bytes(gzip.compress(b"\0\0\x08\x02" + (2**31).to_bytes(4, "big") * 2))
    with pytest.raises(FileError, match="claims 4611686018427387904 bytes"):
        read_idx(path)


def test_honest_files_are_read(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((300, 300)), y=np.arange(3))
    arrays = load_npz(tmp_path / "a.npz")
    assert arrays["x"].shape == (300, 300)
    assert arrays["y"].tolist() == [0, 1, 2]


@cache
def packed_zeros(chunks: int) -> bytes:
    """``chunks`` times 16 MiB of zeros, compressed quickly."""
    packer = zlib.compressobj(level=1)
    return b"".join(packer.compress(bytes(2**24)) for _ in range(chunks)) + packer.flush()


def mat_bomb(order: str, chunks: int) -> bytes:
    """A MATLAB file with one compressed variable that unpacks to ``chunks`` times 16 MiB of zeros."""
    packed = packed_zeros(chunks)
    header = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack(f"{order}H", 0x0100) + (b"IM" if order == "<" else b"MI")
    return header + struct.pack(f"{order}II", 15, len(packed)) + packed


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_small_mat_file_that_unpacks_to_gigabytes_is_refused(tmp_path: Path, order: str) -> None:
    path = tmp_path / "bomb.mat"
    path.write_bytes(mat_bomb(order, 66))
    before = peak_memory()
    with pytest.raises(FileError, match=r"would unpack to 1\.0 GiB, more than the 1\.0 GiB allowed"):
        check_mat(path)
    assert peak_memory() - before < 2**27
    path.write_bytes(mat_bomb(order, 2))
    check_mat(path)


def test_a_tar_archive_is_read_no_further_than_its_limits(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"

    def write(sizes: list[int]) -> None:
        with tarfile.open(path, "w:gz") as archive:
            for number, size in enumerate(sizes):
                info = tarfile.TarInfo(f"m{number}")
                info.size = size
                archive.addfile(info, io.BytesIO(bytes(min(size, 99))) if size < 100 else None)

    def read(*names: str) -> dict[str, bytes]:
        with tarfile.open(path) as archive:
            return dict(tar_members(archive, path, names))

    write([3, 5])
    assert read("m1", "m7") == {"m1": bytes(5)}
    write([0] * (MOST_MEMBERS + 1))
    with pytest.raises(FileError, match=f"more than {MOST_MEMBERS} members"):
        read("m1")
    write([3, 2**40])
    with pytest.raises(FileError, match=r"would unpack to 1024\.0 GiB"):
        read("m1")
