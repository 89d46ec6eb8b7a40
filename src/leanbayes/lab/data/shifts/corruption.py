"""The record of a corruption, and the check of the images that it takes."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from leanbayes.errors import InputError, NonFinite, ShapeMismatch, UnknownName
from leanbayes.lab.data.shifts.draws import Draws

__all__ = ["SEVERITIES", "Corruption", "Family", "checked", "levels", "luminance"]

Family = Literal["noise", "blur", "weather", "digital"]
SEVERITIES = (1, 2, 3, 4, 5)

_SMALLEST = 3  # pixels on a side; smaller images have no neighbours that could be mixed


def levels(*constants: float) -> tuple[tuple[float], ...]:
    """Return the constants of a corruption that has one number for each severity."""
    return tuple((constant,) for constant in constants)


def luminance(x: Tensor) -> Tensor:
    """Return 0.299 R + 0.587 G + 0.114 B of images (N, 3, H, W), with the shape (N, 1, H, W)."""
    return 0.299 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:]


@dataclass(frozen=True)
class Corruption:
    """A corruption at five severities.

    Args:
        name: the name that CIFAR-10-C gives it.
        family: the kind of corruption.
        function: takes images (N, C, H, W) in [0, 1], the constants of a severity and, if ``random``, `Draws`.
        constants: the constants of the severities 1 to 5. Lengths are in pixels, as in CIFAR-10-C, so that larger
            images suffer less. Only `elastic_transform` grows with the image.
        random: whether the corruption draws random numbers.
        colour: whether the function needs red, green and blue. A grey image is then expanded to three equal channels,
            and the result is the luminance of what the function returns.
    """

    name: str
    family: Family
    function: Callable[..., Tensor]
    constants: tuple[tuple[Any, ...], ...]
    random: bool = False
    colour: bool = False

    def __post_init__(self) -> None:
        if self.family not in get_args(Family):
            raise UnknownName.of("family of corruptions", self.family, get_args(Family))
        if len(self.constants) != len(SEVERITIES):
            raise InputError(f"{self.name} has constants for {len(self.constants)} severities; give constants for five")

    def __call__(self, x: Tensor, severity: int, draws: Draws) -> Tensor:
        """Corrupt images of float32 or float64 that `checked` has accepted. The result is in [0, 1]."""
        grey = self.colour and x.shape[1] == 1
        randomness = (draws,) if self.random else ()
        out = self.function(x.expand(-1, 3, -1, -1) if grey else x, *self.constants[severity - 1], *randomness)
        return (luminance(out) if grey else out).clamp(0, 1)


def checked(images: Tensor, channels: tuple[int, ...] = ()) -> Tensor:
    """Return the images in float32 or float64, and refuse what are no images (N, C, H, W) with values in [0, 1]."""
    if not isinstance(images, Tensor) or not images.is_floating_point():
        raise InputError(
            f"need a tensor of floating-point images, got {getattr(images, 'dtype', type(images).__name__)}; "
            "convert bytes first: images.float() / 255"
        )
    if images.dim() != 4 or not images.numel():
        raise ShapeMismatch(f"need images of shape (N, C, H, W), at least one, got {tuple(images.shape)}")
    if channels and images.shape[1] not in channels:
        raise ShapeMismatch(f"need images of {' or '.join(map(str, channels))} channels, got {tuple(images.shape)}")
    if min(images.shape[2:]) < _SMALLEST:
        raise ShapeMismatch(f"images must have {_SMALLEST} or more pixels on each side, got {tuple(images.shape)}")
    wide = images.detach().to(torch.promote_types(images.dtype, torch.float32))
    low, high = (float(value) for value in wide.aminmax())
    if not math.isfinite(high - low):
        raise NonFinite("the images have NaN or infinite values; fill or remove them")
    if low < 0 or high > 1:
        raise InputError(
            f"images must have values in [0, 1], got {low:.4g} to {high:.4g}; corrupt them before they are standardised"
        )
    return wide
