"""Files that are written whole or not at all, and that run no code when they are read.

Tensors go into a safetensors file whose metadata hold one JSON text, the header.
"""

import json
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from leanbayes.errors import FileError, ForeignFile, NewerFile, TruncatedFile

__all__ = ["read_header", "read_tensors", "write_bytes", "write_tensors", "write_text"]

_KEY = "leanbayes"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors and a header to a file.

    The file is written beside ``path``, flushed to the disk and then renamed. So a reader sees the old file or the new
    one, but never a part.

    Args:
        path: the path of the file.
        tensors: the tensors by name. No two of them may share memory.
        header: what JSON can hold, with the keys "kind" and "format".
    """
    _write(path, lambda temporary: save_file(dict(tensors), temporary, metadata={_KEY: json.dumps(header)}))


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8, whole or not at all."""
    _write(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write bytes, whole or not at all."""
    _write(path, lambda temporary: temporary.write_bytes(data))


def _write(path: Path, fill: Callable[[Path], object]) -> None:
    if not path.parent.is_dir():
        raise FileError(f"cannot save to {path}: the folder {path.parent} does not exist; make it first")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode  # safetensors would let nobody but the owner read the file
        fill(temporary)
        temporary.chmod(mode)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        raise FileError(f"cannot save to {path}: {error}; what was there before is untouched") from error
    finally:
        temporary.unlink(missing_ok=True)


def read_header(path: Path, kind: str, newest: int) -> dict[str, Any]:
    """Return the header of a file of this ``kind`` without reading its tensors."""
    return _read(path, kind, newest, tensors=False)[0]


def read_tensors(path: Path, kind: str, newest: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return header and tensors of a file.

    Args:
        path: the path of the file.
        kind: what the header must say that the file is, such as "model".
        newest: the newest format that the caller understands.
    """
    return _read(path, kind, newest, tensors=True)


def _read(path: Path, kind: str, newest: int, tensors: bool) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not path.is_file():
        raise FileError(f"there is no file {path}")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = _header(path, (file.metadata() or {}).get(_KEY), kind, newest)
            names = file.keys() if tensors else []
            return header, {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        with path.open("rb") as broken:
            start = broken.read(9)
        # A safetensors file begins with the length of its JSON header and "{". So a file that was cut short can be
        # told from a file of another kind.
        if not start or (len(start) == 9 and start[8:] == b"{" and int.from_bytes(start[:8], "little") < 2**32):
            raise TruncatedFile(f"{path} is cut short or damaged; copy it again ({error})") from error
        raise ForeignFile(f"{path} is no safetensors file, so leanbayes did not write it ({error})") from error


def _header(path: Path, text: str | None, kind: str, newest: int) -> dict[str, Any]:
    if text is None:
        raise ForeignFile(f"{path} is a safetensors file, but leanbayes did not write it")
    try:
        header: dict[str, Any] = json.loads(text)
    except json.JSONDecodeError as error:
        raise ForeignFile(f"{path} has a header that is not JSON, so leanbayes did not write it") from error
    version = header.get("format") if isinstance(header, dict) else None
    if not isinstance(version, int) or header.get("kind") != kind:
        raise ForeignFile(f"{path} does not say that it is a leanbayes {kind}")
    if version > newest:
        raise NewerFile(f"{path} has format {version}, and this version reads up to {newest}; upgrade leanbayes")
    return header
