"""The tensors of a file, of which only those are in memory that somebody asks for.

`leanbayes._files` reads all tensors of a file at once. A large model would then exist twice while it is loaded. Here
the file stays open instead. Each tensor is checked block by block, and goes to its place tensor by tensor.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._files import digest_of, read_checksums
from leanbayes.errors import FileError, ForeignFile, TruncatedFile

__all__ = ["StoredTensors", "fill", "home", "open_tensors"]

_BLOCK = 2**22  # bytes that are read together
_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}


class StoredTensors(Mapping[str, Tensor]):
    """The tensors of an open safetensors file by name. Each is read anew whenever it is asked for.

    Args:
        path: the path of the file, for messages.
        file: the file, open for reading.
        entries: what the header of the file says of each tensor.
        start: where in the file the numbers begin.
    """

    def __init__(self, path: Path, file: BufferedReader, entries: Mapping[str, Any], start: int) -> None:
        self.path, self._file, self._entries, self._start = path, file, entries, start

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def shape(self, name: str) -> torch.Size:
        """Return the shape of a tensor without reading it."""
        return torch.Size(self._entries[name]["shape"])

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of a tensor without reading it."""
        kind = self._entries[name]["dtype"]
        if kind not in _DTYPES:
            raise ForeignFile(f"{self.path} holds numbers of type {kind}, which leanbayes never writes")
        return _DTYPES[kind]

    def __getitem__(self, name: str) -> Tensor:
        value = torch.empty(self.shape(name), dtype=self.dtype(name))
        self.read_into(name, value)
        return value

    def read_into(self, name: str, target: Tensor) -> None:
        """Copy a tensor of the file, block by block, into a tensor of the same shape and dtype, on any device."""
        if not target.is_contiguous():
            target.copy_(self[name])
            return
        flat, at = target.detach().view(-1), 0
        for block in self._blocks(name):
            numbers = torch.frombuffer(block, dtype=target.dtype)
            flat[at : at + len(numbers)].copy_(numbers)
            at += len(numbers)

    def digest(self, name: str) -> str:
        """Return the checksum of a tensor as `leanbayes._files.tensor_checksum` does."""
        digest: Any = digest_of(self.dtype(name), tuple(self.shape(name)))
        for block in self._blocks(name):
            digest.update(block)
        return str(digest.hexdigest())

    def _blocks(self, name: str) -> Iterator[bytearray]:
        first, end = self._entries[name]["data_offsets"]
        if end - first != math.prod(self.shape(name)) * self.dtype(name).itemsize:
            raise TruncatedFile(f"{self.path} is damaged: {name!r} has another size than its shape; copy it again")
        for at in range(first, end, _BLOCK):
            block = bytearray(min(_BLOCK, end - at))
            try:
                self._file.seek(self._start + at)
                count = self._file.readinto(block)
            except OSError as error:
                raise FileError(f"cannot read {self.path}: {error}") from error
            if count != len(block):
                raise TruncatedFile(f"{self.path} became shorter while it was read; copy it again")
            yield block


@contextmanager
def open_tensors(path: Path, kind: str, newest: int) -> Iterator[tuple[dict[str, Any], StoredTensors]]:
    """Open a file that `leanbayes._files.write_tensors` wrote, and check every tensor by its checksum.

    Args:
        path: the path of the file.
        kind: what the header must say that the file is, such as "model".
        newest: the newest format that the caller understands.

    Yields:
        The header and the tensors, which can be read until the context ends.
    """
    known = path.stat() if path.is_file() else None
    header, sums = read_checksums(path, kind, newest)
    try:
        file = path.open("rb")
    except OSError as error:
        raise FileError(f"cannot read {path}: {error}") from error
    with file:
        if known is None or not os.path.samestat(known, os.fstat(file.fileno())):
            raise FileError(f"{path} was replaced while it was read; load it again")
        length = int.from_bytes(file.read(8), "little")
        entries = json.loads(file.read(length))
        entries.pop("__metadata__", None)
        tensors = StoredTensors(path, file, entries, 8 + length)
        if sums is not None:
            damaged = sorted({*tensors} ^ {*sums}) or [name for name in tensors if tensors.digest(name) != sums[name]]
            if damaged:
                raise TruncatedFile(f"{path} is damaged: the checksum of {damaged[0]!r} does not fit; copy it again")
        yield header, tensors


def home(tensor: Tensor) -> torch.device:
    """Return where the values of a tensor belong: its device, or torch's default for one that has no memory yet."""
    if not tensor.is_meta:
        return tensor.device
    default = torch.get_default_device()
    return torch.device("cpu") if default.type == "meta" else default


def fill(module: nn.Module, stored: Mapping[str, str], tensors: StoredTensors) -> None:
    """Read the state of a module from a file, tensor by tensor.

    Args:
        module: the module. Tensors on the meta device are replaced by such that have memory.
        stored: the name in the file for each name in the state of the module.
        tensors: the file.
    """
    empty = any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers()))
    if type(module).load_state_dict is not nn.Module.load_state_dict and not empty:
        module.load_state_dict({name: tensors[key] for name, key in stored.items()})
        return
    own: dict[str, Tensor] = {}
    for path, part in module.named_modules(remove_duplicate=False):
        if _loads_as_torch_does(part):
            for name, value in (*part._parameters.items(), *part._buffers.items()):
                if value is not None:
                    own[f"{path}.{name}" if path else name] = value
    made: dict[Tensor, Tensor] = {}  # what takes the place of a tensor without memory
    rest = {}
    with torch.no_grad():
        for name, key in stored.items():
            value = own.get(name)
            if value is None:
                rest[name] = tensors[key]
            elif not value.is_meta:
                tensors.read_into(key, value)
            else:
                if value not in made:
                    made[value] = _with_memory(value, tensors[key].to(home(value)))
                path, _, last = name.rpartition(".")
                owner = module.get_submodule(path)
                (owner._parameters if last in owner._parameters else owner._buffers)[last] = made[value]  # type: ignore[assignment]
    if rest:
        module.load_state_dict(rest, strict=False, assign=empty)


def _with_memory(tensor: Tensor, values: Tensor) -> Tensor:
    if not isinstance(tensor, nn.Parameter):
        return values
    parameter = nn.Parameter(values, tensor.requires_grad)
    parameter.__dict__.update(tensor.__dict__)
    return parameter


def _loads_as_torch_does(module: nn.Module) -> bool:
    """Whether the state of a module is just its tensors, because it has no ways of its own to save or load."""
    kind: Any = type(module)
    ways = (
        *(module._load_state_dict_pre_hooks, module._load_state_dict_post_hooks),
        *(module._state_dict_hooks, module._state_dict_pre_hooks),
    )
    plain = kind._load_from_state_dict is nn.Module._load_from_state_dict
    return (plain or kind._load_from_state_dict.__module__.startswith("torch.nn.")) and not any(ways)
