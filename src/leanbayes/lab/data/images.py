"""Image files as tensors: any mode that Pillow reads, checked when a set is read, kept in memory where small."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from leanbayes.errors import FileError, InputError, LeanBayesError

__all__ = [
    "ImageFiles",
    "Kept",
    "Size",
    "Track",
    "common_shape",
    "image_files",
    "read_image",
    "read_picture",
    "untracked",
]

SUFFIXES = frozenset([".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm", ".pbm"])
Size = tuple[int, int]  # height, width
Track = Callable[[Sequence[Any], str], Iterable[Any]]
"""Passes on what it is given and may show how far it is: ``rich.progress.track`` is one."""

_GREY = ("1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N")
_DEEP = 65535  # white in 16 bits
_MOST_PIXELS = 100_000_000  # an image file of a few kilobytes can claim any number
_MEMORY = 2**29  # bytes of pixels that a set may keep


def untracked(items: Sequence[Any], what: str) -> Iterable[Any]:  # noqa: ARG001
    """Show nothing."""
    return items


def image_files(folder: Path) -> list[Path]:
    """Every image in a folder and below it, sorted; hidden files and those of other kinds are passed over."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and path.is_file()
    )


def read_picture(path: Path, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """Open, decode and convert one image file; any damage is an error that names the file."""
    try:
        with Image.open(path) as image:
            if getattr(image, "n_frames", 1) > 1 and image.format != "MPO":  # a camera's MPO holds previews besides
                raise InputError(f"image {path} holds {getattr(image, 'n_frames', 0)} pictures; save each as a file")
            if image.width * image.height > _MOST_PIXELS:
                raise InputError(
                    f"image {path} has {image.width}x{image.height} pixels, more than {_MOST_PIXELS}; make it smaller"
                )
            return convert(image)
    except LeanBayesError:
        raise
    except Exception as error:  # what decoders raise on damaged files is not documented
        first = str(error).partition("\n")[0] or type(error).__name__
        raise FileError(f"cannot read image {path}: {first}; remove it or copy it again") from error


def read_image(path: Path, channels: int, size: Size | None = None) -> Tensor:
    """Pixels (channels, height, width): bytes, or numbers in [0, 1] for files of 16 bits; ``size`` resizes.

    Transparent pixels are black. One channel is luminance, three are red, green and blue.
    """

    def convert(image: Image.Image) -> Image.Image:
        plain = _plain(image, path, channels)
        if size is None or size == (plain.height, plain.width):
            return plain
        return plain.resize((size[1], size[0]), Image.Resampling.BILINEAR)

    pixels = torch.from_numpy(np.array(read_picture(path, convert)))
    return pixels.permute(2, 0, 1).contiguous() if pixels.dim() == 3 else pixels.expand(channels, -1, -1)


def common_shape(paths: Sequence[Path], size: Size | None, track: Track = untracked) -> tuple[int, Size]:
    """Channels (1 if all images are grey, else 3) and size: the one given, or that of every image."""
    channels, first = 1, None
    for path in track(paths, "looking at images"):
        image = _header(path)
        channels = channels if image.mode in _GREY else 3
        if first is None:
            first = image.height, image.width
        if size is None and (image.height, image.width) != first:
            raise InputError(
                f"image {path} is {image.height}x{image.width}, but {paths[0]} is {first[0]}x{first[1]}; "
                f"give a size to bring all to, such as {first[0]}"
            )
    if first is None:
        raise InputError("there are no images")
    return channels, size or first


class ImageFiles:
    """Images of one shape, by number. All are read once, so that a damaged one is found; few enough are kept."""

    def __init__(self, paths: Sequence[Path], channels: int, size: Size, track: Track = untracked) -> None:
        self.paths, self.channels, self.size = list(paths), channels, size
        self.kept = Kept()
        for path in track(self.paths, "reading images"):
            self.kept.add(read_image(path, channels, size))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, place: int) -> Tensor:
        kept = self.kept[place]
        return read_image(self.paths[place], self.channels, self.size) if kept is None else kept


class Kept:
    """Tensors in memory, all of them or, once they are too large together, none."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] | None = []
        self.room = _MEMORY

    def add(self, tensor: Tensor) -> None:
        """Keep one more if there is room."""
        self.room -= tensor.numel() * tensor.element_size()
        if self.room < 0:
            self.tensors = None
        if self.tensors is not None:
            self.tensors.append(tensor)

    def __getitem__(self, place: int) -> Tensor | None:
        return None if self.tensors is None else self.tensors[place]


def _header(path: Path) -> Image.Image:
    """An image of which only the mode and the size have been read."""
    try:
        with Image.open(path) as image:
            return image
    except Exception as error:
        raise FileError(f"cannot read image {path}: it is no image; remove it or copy it again") from error


def _plain(image: Image.Image, path: Path, channels: int) -> Image.Image:
    """Mode L or RGB, or F in [0, 1] for a grey image of 16 bits."""
    if image.mode == "I" or image.mode.startswith("I;16"):
        values = np.asarray(image).astype(np.float32) / _DEEP
        if values.min() < 0 or values.max() > 1:
            raise InputError(f"image {path} has values outside 0 to {_DEEP}; save it with 8 or 16 bits a pixel")
        return Image.fromarray(values)
    if image.mode == "F":
        raise InputError(f"image {path} holds floating-point numbers; save it with 8 or 16 bits, or give an .npz")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image)
    return image.convert("L" if channels == 1 else "RGB")
