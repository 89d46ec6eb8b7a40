"""Image files as tensors, and sets of image files that keep small images in memory."""

import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from leanbayes.errors import FileError, InputError, LeanBayesError

__all__ = [
    "MOST_PIXELS",
    "HeldImage",
    "ImageFiles",
    "Size",
    "TensorCache",
    "Track",
    "common_shape",
    "image_files",
    "image_size",
    "read_image",
    "read_picture",
    "untracked",
]

SUFFIXES = frozenset([".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm", ".pbm"])
Size = tuple[int, ...]  # height, width; or depth, height, width
Track = Callable[[Sequence[Any], str], Iterable[Any]]
"""A function that yields the items of a sequence and may show the progress: ``rich.progress.track`` is one."""

MOST_PIXELS = 80_000_000
"""How many pixels an image may have. An image file of a few kilobytes can claim any number."""

# Pillow recognises a file by its content. Of its decoders, the one for EPS starts Ghostscript, which runs programs, so
# only the decoders of the suffixes above are allowed.
_FORMATS = ("PNG", "JPEG", "BMP", "DIB", "GIF", "TIFF", "WEBP", "PPM")
_GREY = ("1", "L", "LA", "La", "F", "I", "I;16", "I;16L", "I;16B", "I;16N")
_DEEP = 65535  # white in 16 bits
_MEMORY = 2**29  # bytes of pixels that one set may keep in memory


def untracked(items: Sequence[Any], what: str) -> Iterable[Any]:  # noqa: ARG001
    """Return the items and show no progress."""
    return items


def image_files(folder: Path) -> list[Path]:
    """Return every image in a folder and below it, sorted by path.

    Hidden files and files with other suffixes than those of images are left out.
    """
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and path.is_file()
    )


class HeldImage(io.BytesIO):
    """The bytes of an image that is no file of its own, such as a member of an archive.

    Args:
        data: the bytes.
        name: how messages call the image.
    """

    def __init__(self, data: bytes, name: str) -> None:
        super().__init__(data)
        self.label = name

    def __str__(self) -> str:
        return self.label


def read_picture(path: Path | HeldImage, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """Open, decode and convert one image file, or the bytes of one.

    Raises:
        FileError: if the file is damaged or no image. The message names the file.
        InputError: if the image has too many pixels, or the file holds several pictures.
    """
    try:
        with _open(path) as image:
            if getattr(image, "n_frames", 1) > 1 and image.format != "MPO":  # a camera's MPO holds previews besides
                raise InputError(
                    f"image {path} holds {getattr(image, 'n_frames', 0)} pictures; save each picture in its own file"
                )
            return convert(image)
    except LeanBayesError:
        raise
    except Exception as error:  # what decoders raise on damaged files is not documented
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise FileError(f"cannot read image {path}: {reason}; remove it or copy it again") from error


def read_image(path: Path | HeldImage, channels: int, size: Size | None = None) -> Tensor:
    """Read an image file as a tensor of shape (channels, height, width).

    Files of 8 bits give bytes, files of 16 bits give numbers in [0, 1], and floating-point numbers stay as they are.
    Transparent pixels become black.

    Args:
        path: the image file.
        channels: 1 for luminance, 3 for red, green and blue.
        size: (height, width) to which the image is resized. By default it keeps its own size.
    """

    def convert(image: Image.Image) -> Image.Image:
        plain = _plain(image, path, channels)
        if size is None or size == (plain.height, plain.width):
            return plain
        return plain.resize((size[1], size[0]), Image.Resampling.BILINEAR)

    pixels = torch.from_numpy(np.array(read_picture(path, convert)))
    return pixels.permute(2, 0, 1).contiguous() if pixels.dim() == 3 else pixels.expand(channels, -1, -1)


def image_size(path: Path | HeldImage) -> Size:
    """Return the height and the width that an image file states, without decoding its pixels."""
    image = _header(path)
    return image.height, image.width


def common_shape(paths: Sequence[Path], size: Size | None, track: Track = untracked) -> tuple[int, Size]:
    """Return the shape that all images of a data set get.

    Args:
        paths: the image files.
        size: (height, width) to which images will be resized. Without it, all images must have one size.
        track: shows the progress.

    Returns:
        The number of channels, which is 1 if all images are grey and 3 otherwise, and the size (height, width).
    """
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
        raise InputError("there are no images; give at least one")
    return channels, size or first


class ImageFiles:
    """The images of a list of files, all with one shape, which are found by their index.

    The constructor reads every file, so that it finds damaged ones at once. The images stay in memory if they are small
    enough together. Otherwise each image is read again whenever it is asked for.
    """

    def __init__(self, paths: Sequence[Path], channels: int, size: Size, track: Track = untracked) -> None:
        self.paths, self.channels, self.size = list(paths), channels, size
        self.cache = TensorCache()
        for path in track(self.paths, "reading images"):
            self.cache.add(read_image(path, channels, size))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        image = self.cache[index]
        return read_image(self.paths[index], self.channels, self.size) if image is None else image


class TensorCache:
    """Tensors in memory. The cache holds all tensors or, once they are too large together, none of them."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] | None = []
        self.room = _MEMORY

    def add(self, tensor: Tensor) -> None:
        """Append a tensor, or empty the cache for good if the tensors have become too large."""
        self.room -= tensor.numel() * tensor.element_size()
        if self.room < 0:
            self.tensors = None
        if self.tensors is not None:
            self.tensors.append(tensor)

    def __getitem__(self, index: int) -> Tensor | None:
        return None if self.tensors is None else self.tensors[index]


def _open(path: Path | HeldImage) -> Image.Image:
    """Open an image file of an allowed format, and refuse one that claims too many pixels before it is decoded."""
    if isinstance(path, HeldImage):
        path.seek(0)
    image = Image.open(path, formats=_FORMATS)
    if image.width * image.height > MOST_PIXELS:
        image.close()
        raise InputError(
            f"image {path} has {image.width}x{image.height} pixels, more than {MOST_PIXELS}; make it smaller"
        )
    return image


def _header(path: Path | HeldImage) -> Image.Image:
    """Return an image of which only the mode and the size have been read."""
    try:
        with _open(path) as image:
            return image
    except LeanBayesError:
        raise
    except Exception as error:
        raise FileError(f"cannot read image {path}: it is no image; remove it or copy it again") from error


def _plain(image: Image.Image, path: Path | HeldImage, channels: int) -> Image.Image:
    """Convert an image to the mode L or RGB, to F in [0, 1] if it is grey and has 16 bits, or keep the mode F."""
    if image.mode == "I" or image.mode.startswith("I;16"):
        values = np.asarray(image).astype(np.float32) / _DEEP
        if values.min() < 0 or values.max() > 1:
            raise InputError(f"image {path} has values outside 0 to {_DEEP}; save it with 8 or 16 bits a pixel")
        return Image.fromarray(values)
    if image.mode == "F":
        if not np.isfinite(np.asarray(image)).all():
            raise InputError(f"image {path} has NaN or infinite values; fill them, or remove the image")
        return image.copy()
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image)
    return image.convert("L" if channels == 1 else "RGB")
