"""Files that are written whole or not at all, that notice damage, and that run no code when they are read.

Tensors go into a safetensors file whose metadata hold one JSON text, the header, and the checksums of the header and of
every tensor. A file is written beside its place, flushed to the disk and renamed; then the folder is flushed. So a
power cut leaves the old file or the new one. A file that is being written lies in a folder of its own, which is called
``.<name>.<machine>-<process>-<token>.part``. So the remains of a killed process differ from the file of a process that
still writes, and they include the temporary files that the library safetensors makes beside the file it writes. A
folder that is removed gets such a name first, so that a kill leaves no half of it.
"""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from leanbayes.errors import FileError, ForeignFile, NewerFile, TruncatedFile

__all__ = [
    "checksum",
    "digest_of",
    "discard",
    "flush",
    "read_checksums",
    "read_header",
    "read_tensors",
    "sweep",
    "sweep_once",
    "tensor_checksum",
    "write_bytes",
    "write_file",
    "write_tensors",
    "write_text",
]

_KEY = "leanbayes"
_CHECKSUMS = "leanbayes.checksums"
_MARK = "checked"  # in the header: this file has checksums. So damage cannot make it look like one of version 0.1
_MOST_BYTES, _MOST_VALUES, _MOST_TENSORS, _MOST_DEPTH = 2**25, 100_000, 100_000, 50
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_PART = re.compile(r"^\..*\.([0-9a-f]{8})-(\d+)-([0-9a-f]{8})\.part$")
_being_written: set[str] = set()  # tokens of the files that this process writes at present
_swept: set[Path] = set()


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors and a header to a file.

    The file is written beside ``path``, flushed to the disk and then renamed. So a reader sees the old file or the new
    one, but never a part.

    Args:
        path: the path of the file.
        tensors: the tensors by name. No two of them may share memory.
        header: what JSON can hold, with the keys "kind" and "format".
    """
    text = json.dumps({**header, _MARK: True})
    refusal = _too_much(text, len(tensors))
    if refusal is not None:
        raise FileError(f"cannot save to {path}: {refusal}, and no file could be read back")
    sums = {
        "header": checksum(text.encode()),
        "tensors": {name: tensor_checksum(value) for name, value in tensors.items()},
    }
    metadata = {_KEY: text, _CHECKSUMS: json.dumps(sums)}
    write_file(path, lambda temporary: save_file(dict(tensors), temporary, metadata=metadata))


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8, whole or not at all."""
    write_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write bytes, whole or not at all."""
    write_file(path, lambda temporary: temporary.write_bytes(data))


def checksum(data: Any) -> str:
    """Return a short digest of bytes, such that other bytes have another one.

    >>> checksum(b"weights")
    '8eaa55a578eb0f70'
    """
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def sweep(folder: Path, *, alone: bool = False) -> None:
    """Remove what disturbed processes left in a folder: files and folders that they had begun to write or to remove.

    Args:
        folder: the folder; its subfolders are left alone. It need not exist.
        alone: whether no other process may write there now, because the caller holds the lock of the folder. Then all
            remains go. Otherwise those go whose process ran on this machine and has ended: the process number of
            another machine tells nothing, and a process that lives may still write.
    """
    for path in folder.glob(".*.part"):
        match = _PART.match(path.name)
        if match is None or match[3] in _being_written:
            continue
        machine, process = match[1], int(match[2])
        if alone or (machine == _machine() and (process == os.getpid() or not _lives(process))):
            _remove(path)


def sweep_once(folder: Path) -> None:
    """Sweep a folder that this process has not swept yet, because looking into a large folder takes time."""
    if folder.absolute() not in _swept:
        _swept.add(folder.absolute())
        sweep(folder)


def discard(folder: Path) -> None:
    """Remove a folder with all that it holds. A kill leaves the whole folder, or nothing under its name.

    The folder is renamed first. What cannot be removed after that is removed by the next `sweep` of the parent.

    Raises:
        FileError: the folder cannot be renamed. It is untouched.
    """
    hidden = _hidden(folder, secrets.token_hex(4))
    try:
        folder.rename(hidden)
    except FileNotFoundError:
        return
    except OSError as error:
        raise FileError(f"cannot remove {folder}: {error}") from error
    _remove(hidden)


def write_file(path: Path, fill: Callable[[Path], object]) -> None:
    """Write a file whole or not at all.

    Args:
        path: the path of the file.
        fill: writes the content to the path that it is called with, which has the same name in a folder of its own.
    """
    if not path.parent.is_dir():
        raise FileError(f"cannot save to {path}: the folder {path.parent} does not exist; make it first")
    sweep_once(path.parent)
    token = secrets.token_hex(4)
    own = _hidden(path, token)
    temporary = own / path.name
    _being_written.add(token)
    try:
        own.mkdir()
        temporary.touch()
        mode = temporary.stat().st_mode  # safetensors would let nobody but the owner read the file
        fill(temporary)
        temporary.chmod(mode)
        flush(temporary)
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        raise FileError(f"cannot save to {path}: {error}; what was there before is untouched") from error
    finally:
        _remove(own)
        _being_written.discard(token)
    try:
        flush(path.parent)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES):  # file systems that flush no folders
            raise FileError(f"{path} is written, but the disk did not confirm its name: {error}") from error


def _hidden(path: Path, token: str) -> Path:
    """Return the name beside ``path`` by which a sweep knows what a process had begun."""
    return path.with_name(f".{path.name}.{_machine()}-{os.getpid()}-{token}.part")


def _remove(remains: Path) -> None:
    """Remove a folder in which a file was being written, or such a file of an older version, if that is possible.

    Nothing depends on it: another process may sweep at the same time, and the next sweep tries again.
    """
    if remains.is_dir():
        shutil.rmtree(remains, ignore_errors=True)
    else:
        with suppress(OSError):
            remains.unlink()


def flush(path: Path) -> None:
    """Wait until the disk holds a file, or the names in a folder."""
    if os.name == "nt" and path.is_dir():
        return  # Windows opens no folders
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@cache
def _machine() -> str:
    """Return what tells process numbers of this machine from those of others that share the folder."""
    try:
        processes = str(Path("/proc/self/ns/pid").readlink())  # containers count their processes on their own
    except OSError:
        processes = ""
    return checksum(f"{socket.gethostname()} {processes}".encode())[:8]


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True  # it belongs to another user
    return True


def tensor_checksum(tensor: Tensor) -> str:
    """Return the digest of a tensor's numbers, with its type and shape. A file lies on the host, and so do its sums."""
    numbers = np.asarray(tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8))
    digest: Any = digest_of(tensor.dtype, tuple(tensor.shape))
    digest.update(numbers.data)
    return str(digest.hexdigest())


def digest_of(dtype: torch.dtype, shape: tuple[int, ...]) -> Any:
    """Return the digest of a tensor's type and shape, to which its numbers must be added."""
    return hashlib.blake2b(f"{dtype} {shape}".encode(), digest_size=8)


def _too_much(text: str, tensors: int) -> str | None:
    """Say which bound a header exceeds. A header of some kilobytes must not take gigabytes or the whole stack."""
    if tensors > _MOST_TENSORS:
        return f"it would hold {tensors:,} tensors, and at most {_MOST_TENSORS:,} are read"
    if len(text) > _MOST_BYTES:
        return f"its header has {len(text):,} characters, and at most {_MOST_BYTES:,} are read"
    plain = _STRING.sub("", text)
    values = plain.count(",") + 1
    if values > _MOST_VALUES:
        return f"its header holds {values:,} values, and at most {_MOST_VALUES:,} are read"
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", plain):
        depth += 1 if bracket in "[{" else -1
        if depth > _MOST_DEPTH:
            return f"its header is nested more than {_MOST_DEPTH} deep"
    return None


def read_header(path: Path, kind: str, newest: int) -> dict[str, Any]:
    """Return the header of a file of this ``kind`` without reading its tensors."""
    return _read(path, kind, newest, tensors=False)[0]


def read_checksums(path: Path, kind: str, newest: int) -> tuple[dict[str, Any], dict[str, str] | None]:
    """Return the header of a file, and the checksums of its tensors; a file of version 0.1 has none."""
    header, _, sums = _read(path, kind, newest, tensors=False)
    return header, sums


def read_tensors(path: Path, kind: str, newest: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return header and tensors of a file.

    Args:
        path: the path of the file.
        kind: what the header must say that the file is, such as "model".
        newest: the newest format that the caller understands.
    """
    return _read(path, kind, newest, tensors=True)[:2]


def _read(
    path: Path, kind: str, newest: int, tensors: bool
) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, str] | None]:
    if not path.is_file():
        raise FileError(f"there is no file {path}")
    try:
        _check_size(path)
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            header = _header(path, metadata.get(_KEY), kind, newest)
            sums = _checksums(path, metadata, header)
            names = list(file.keys()) if tensors else []
            values = {name: file.get_tensor(name) for name in names}
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"cannot read {path}: {error}") from error
    except SafetensorError as error:
        with path.open("rb") as broken:
            start = broken.read(9)
        # A safetensors file begins with the length of its JSON header and "{". So a file that was cut short can be
        # told from a file of another kind.
        if not start or (len(start) == 9 and start[8:] == b"{" and int.from_bytes(start[:8], "little") < 2**32):
            raise TruncatedFile(f"{path} is cut short or damaged; copy it again ({error})") from error
        raise ForeignFile(f"{path} is no safetensors file, so leanbayes did not write it ({error})") from error
    if sums is not None and tensors:
        damaged = sorted({*values} ^ {*sums}) or [
            name for name in values if tensor_checksum(values[name]) != sums[name]
        ]
        if damaged:
            raise TruncatedFile(f"{path} is damaged: the checksum of {damaged[0]!r} does not fit; copy it again")
    return header, values, sums


def _check_size(path: Path) -> None:
    """Refuse a file with a header that no file of ours has, before it takes memory."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(9)
        length = int.from_bytes(start[:8], "little")
        if len(start) < 9 or start[8:] != b"{" or length + 8 > size:
            return  # no safetensors file, or one that is cut short: safetensors says which
        if length > 2 * _MOST_BYTES:
            raise ForeignFile(f"{path} has a header of {length:,} bytes, so leanbayes did not write it")
        count = (b"{" + file.read(length - 1)).count(b'"data_offsets"')
    if count > _MOST_TENSORS:
        raise ForeignFile(f"{path} holds {count:,} tensors, and leanbayes reads at most {_MOST_TENSORS:,}")


def _header(path: Path, text: str | None, kind: str, newest: int) -> dict[str, Any]:
    if text is None:
        raise ForeignFile(f"{path} is a safetensors file, but leanbayes did not write it")
    refusal = _too_much(text, 0)
    if refusal is not None:
        raise ForeignFile(f"{path} was not written by leanbayes: {refusal}")
    try:
        header: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ForeignFile(f"{path} has a header that is not JSON, so leanbayes did not write it") from error
    version = header.get("format") if isinstance(header, dict) else None
    if not isinstance(version, int) or header.get("kind") != kind:
        raise ForeignFile(f"{path} does not say that it is a leanbayes {kind}")
    if version > newest:
        raise NewerFile(f"{path} has format {version}, and this version reads up to {newest}; upgrade leanbayes")
    return header


def _checksums(path: Path, metadata: Mapping[str, str], header: dict[str, Any]) -> dict[str, str] | None:
    """Check the header by its checksum, and return those of the tensors. A file of version 0.1 has none."""
    marked, text = header.pop(_MARK, None) is True, metadata.get(_CHECKSUMS)
    if not marked and text is None:
        return None
    damage = f"{path} is damaged: the checksum of its header does not fit; copy it again"
    try:
        sums = json.loads(text or "")
        stated, tensors = sums["header"], dict(sums["tensors"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise TruncatedFile(damage) from error
    if not marked or stated != checksum(metadata[_KEY].encode()):
        raise TruncatedFile(damage)
    return tensors
