"""What a corruption is, and what images it takes."""

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

_LEAST = 3  # pixels on a side: fewer have no neighbours to be mixed with


def levels(*constants: float) -> tuple[tuple[float], ...]:
    """The constants of a corruption that has one for each severity."""
    return tuple((constant,) for constant in constants)


def luminance(x: Tensor) -> Tensor:
    """0.299 R + 0.587 G + 0.114 B of images (N, 3, H, W), as (N, 1, H, W)."""
    return 0.299 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:]


@dataclass(frozen=True)
class Corruption:
    """A corruption at five severities.

    Args:
        name: as in CIFAR-10-C.
        family: what it is a kind of.
        function: takes images (N, C, H, W) in [0, 1], the constants of a severity and, if ``random``, `Draws`.
        constants: of the severities 1 to 5. They are in pixels where they are lengths, as in CIFAR-10-C, so that larger
            images suffer less; only `elastic_transform` grows with the image.
        random: whether it draws random numbers.
        colour: whether it needs red, green and blue; a grey image is then taken for three equal channels, and the
            luminance of what becomes of them is kept.
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
            raise InputError(f"{self.name} has constants for {len(self.constants)} severities; there are five")

    def __call__(self, x: Tensor, severity: int, draws: Draws) -> Tensor:
        """Corrupt images of float32 or float64 that have been checked; the result is in [0, 1]."""
        grey = self.colour and x.shape[1] == 1
        last = (draws,) if self.random else ()
        out = self.function(x.expand(-1, 3, -1, -1) if grey else x, *self.constants[severity - 1], *last)
        return (luminance(out) if grey else out).clamp(0, 1)


def checked(images: Tensor, channels: tuple[int, ...] = ()) -> Tensor:
    """The images in float32 or wider, if they are images (N, C, H, W) with finite values in [0, 1]."""
    if not isinstance(images, Tensor) or not images.is_floating_point():
        raise InputError(
            f"need a tensor of floating-point images, got {getattr(images, 'dtype', type(images).__name__)}; "
            "convert bytes first: images.float() / 255"
        )
    if images.dim() != 4 or not images.numel():
        raise ShapeMismatch(f"need images of shape (N, C, H, W), at least one, got {tuple(images.shape)}")
    if channels and images.shape[1] not in channels:
        raise ShapeMismatch(f"need images of {' or '.join(map(str, channels))} channels, got {tuple(images.shape)}")
    if min(images.shape[2:]) < _LEAST:
        raise ShapeMismatch(f"images must have {_LEAST} or more pixels on each side, got {tuple(images.shape)}")
    wide = images.detach().to(torch.promote_types(images.dtype, torch.float32))
    low, high = (float(value) for value in wide.aminmax())
    if not math.isfinite(high - low):
        raise NonFinite("the images have NaN or infinite values; fill or remove them")
    if low < 0 or high > 1:
        raise InputError(
            f"images must have values in [0, 1], got {low:.4g} to {high:.4g}; corrupt them before they are standardised"
        )
    return wide
