"""Files written whole or not at all; tensors and JSON in one safetensors file, and nothing executed when read."""

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
    """Write beside ``path``, flush to the disk, then rename: a reader sees the old file or the new one, no part."""
    _write(path, lambda temporary: save_file(dict(tensors), temporary, metadata={_KEY: json.dumps(header)}))


def write_text(path: Path, text: str) -> None:
    """The same for text."""
    _write(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """The same for bytes."""
    _write(path, lambda temporary: temporary.write_bytes(data))


def _write(path: Path, fill: Callable[[Path], object]) -> None:
    if not path.parent.is_dir():
        raise FileError(f"cannot save to {path}: the folder {path.parent} does not exist; make it first")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode  # that of any new file; safetensors makes its own private
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
    """The header alone."""
    return _read(path, kind, newest, tensors=False)[0]


def read_tensors(path: Path, kind: str, newest: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of a file of this ``kind``, of a format up to ``newest``."""
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
        # A safetensors file begins with the length of its JSON header: so a cut file is told from a foreign one.
        if not start or (len(start) == 9 and start[8:] == b"{" and int.from_bytes(start[:8], "little") < 2**32):
            raise TruncatedFile(f"{path} is cut short or damaged; copy it again ({error})") from error
        raise ForeignFile(f"{path} is no safetensors file: leanbayes did not write it ({error})") from error


def _header(path: Path, text: str | None, kind: str, newest: int) -> dict[str, Any]:
    if text is None:
        raise ForeignFile(f"{path} is a safetensors file, but leanbayes did not write it")
    try:
        header: dict[str, Any] = json.loads(text)
    except json.JSONDecodeError as error:
        raise ForeignFile(f"{path} has a header that is no JSON: leanbayes did not write it") from error
    found = header.get("format") if isinstance(header, dict) else None
    if not isinstance(found, int) or header.get("kind") != kind:
        raise ForeignFile(f"{path} does not say that it is a leanbayes {kind}")
    if found > newest:
        raise NewerFile(f"{path} is of format {found}, this version reads up to {newest}; upgrade leanbayes")
    return header
