"""Corrupted sets of images in files, so that each is computed once."""

import hashlib
from pathlib import Path

import torch
from torch import Tensor

from leanbayes._files import read_tensors, sweep_once, write_tensors
from leanbayes.errors import FileError, ForeignFile, TruncatedFile
from leanbayes.lab.data.shifts.corruption import checked
from leanbayes.lab.data.shifts.draws import on_host
from leanbayes.lab.data.shifts.registry import corrupt, known

__all__ = ["cached"]

_KIND, _FORMAT = "corrupted images", 1  # increase the format whenever a corruption changes
_ROWS_AT_A_TIME = 1024  # images that are hashed together


def cached(images: Tensor, name: str, severity: int, *, folder: Path | str, seed: int = 0) -> Tensor:
    """Corrupt images and round them to bytes, as CIFAR-10-C does, or read the result of an earlier call from a file.

    The file is found by the corruption, the severity, the seed and a hash of the images. It holds bytes in the format
    safetensors, and is written whole or not at all. A file that is cut short is computed again. A file that does not
    hold what its name says is an error.

    Args:
        images: a whole set of images, as for `corrupt`.
        name: one of ``CORRUPTIONS``.
        severity: 1 to 5.
        folder: the folder of the files. It is created if it does not exist.
        seed: decides all random numbers.

    Returns:
        Multiples of 1/255, with the dtype and device of ``images``. They are the same whether computed or read.
    """
    known(name, severity, seed)
    checked(images, channels=(1, 3))
    header = {"kind": _KIND, "format": _FORMAT, "name": name, "severity": severity, "seed": seed, "of": _hash(images)}
    path = Path(folder) / f"{name}-{severity}-{seed}-{header['of']}.safetensors"
    sweep_once(path.parent)  # where all files are there, no write would sweep
    pixels = _read(path, header, images)
    if pixels is None:
        pixels = (255 * corrupt(images, name, severity, seed=seed).to(torch.float32)).round().to(torch.uint8)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot create the folder {path.parent}: {error}; give another folder") from error
        write_tensors(path, {"images": pixels}, header)
    return (pixels.to(images.device).to(torch.promote_types(images.dtype, torch.float32)) / 255).to(images.dtype)


def _read(path: Path, header: dict[str, object], images: Tensor) -> Tensor | None:
    if not path.exists():
        return None
    try:
        written, tensors = read_tensors(path, _KIND, _FORMAT)
    except TruncatedFile:
        return None
    pixels = tensors.get("images")
    if written != header or pixels is None or pixels.shape != images.shape or pixels.dtype != torch.uint8:
        raise ForeignFile(f"{path} holds other images than its name says; remove it, and it will be computed again")
    return pixels


def _hash(images: Tensor) -> str:
    """Return a hash of the shape, the dtype and every value."""
    digest = hashlib.sha256(f"{_FORMAT} {tuple(images.shape)} {images.dtype}".encode())
    for part in images.split(_ROWS_AT_A_TIME):
        digest.update(on_host(part.contiguous().view(torch.uint8)))
    return digest.hexdigest()[:32]
