"""Corrupted sets kept on the disk."""

import hashlib
from pathlib import Path

import torch
from torch import Tensor

from leanbayes._files import read_tensors, write_tensors
from leanbayes.errors import FileError, ForeignFile, TruncatedFile
from leanbayes.lab.data.shifts.corruption import checked
from leanbayes.lab.data.shifts.draws import on_host
from leanbayes.lab.data.shifts.registry import corrupt, known

__all__ = ["cached"]

_KIND, _FORMAT = "corrupted images", 1  # a new number for any change of what a corruption does
_ROWS = 1024  # images hashed at a time


def cached(images: Tensor, name: str, severity: int, *, folder: Path | str, seed: int = 0) -> Tensor:
    """`corrupt`, rounded to bytes as CIFAR-10-C is, and read from ``folder`` when it has been done before.

    A file holds the bytes as safetensors, written whole or not at all; it is found by corruption, severity, seed and a
    hash of the images. Computed or read, the result is the same: multiples of 1/255, of the dtype and device of
    ``images``. A file that is cut short is made again; one that is not what its name says is an error.

    Args:
        images: a whole set, as for `corrupt`.
        name: one of ``CORRUPTIONS``.
        severity: 1 to 5.
        folder: made if it is not there.
        seed: for what is random.
    """
    known(name, severity, seed)
    checked(images, channels=(1, 3))
    header = {"kind": _KIND, "format": _FORMAT, "name": name, "severity": severity, "seed": seed, "of": _hash(images)}
    path = Path(folder) / f"{name}-{severity}-{seed}-{header['of']}.safetensors"
    found = _read(path, header, images)
    if found is None:
        found = (255 * corrupt(images, name, severity, seed=seed).to(torch.float32)).round().to(torch.uint8)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot make the folder {path.parent}: {error}; give another") from error
        write_tensors(path, {"images": found}, header)
    return (found.to(images.device).to(torch.promote_types(images.dtype, torch.float32)) / 255).to(images.dtype)


def _read(path: Path, header: dict[str, object], images: Tensor) -> Tensor | None:
    if not path.exists():
        return None
    try:
        written, tensors = read_tensors(path, _KIND, _FORMAT)
    except TruncatedFile:
        return None
    found = tensors.get("images")
    if written != header or found is None or found.shape != images.shape or found.dtype != torch.uint8:
        raise ForeignFile(f"{path} holds other images than its name says; remove it, and it is made anew")
    return found


def _hash(images: Tensor) -> str:
    """Of shape, dtype and every value."""
    digest = hashlib.sha256(f"{_FORMAT} {tuple(images.shape)} {images.dtype}".encode())
    for part in images.split(_ROWS):
        digest.update(on_host(part.contiguous().view(torch.uint8)))
    return digest.hexdigest()[:32]
