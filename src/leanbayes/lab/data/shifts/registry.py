"""Corruptions by name."""

import torch
from torch import Tensor

from leanbayes.errors import InputError, UnknownName
from leanbayes.lab.data.shifts.blur import BLURS
from leanbayes.lab.data.shifts.corruption import SEVERITIES, Corruption, checked
from leanbayes.lab.data.shifts.digital import DIGITALS
from leanbayes.lab.data.shifts.draws import Draws
from leanbayes.lab.data.shifts.noise import NOISES
from leanbayes.lab.data.shifts.weather import WEATHERS

__all__ = ["CORRUPTIONS", "corrupt", "known"]

CORRUPTIONS: dict[str, Corruption] = {one.name: one for one in (*NOISES, *BLURS, *WEATHERS, *DIGITALS)}
"""The 19 corruptions of CIFAR-10-C (Hendrycks and Dietterich 2019) by name."""

_VALUES = 2**22  # worked on at a time, so that what lies between needs little memory


def corrupt(images: Tensor, name: str, severity: int, *, seed: int = 0, first: int = 0) -> Tensor:
    """Images with one of the 19 corruptions of CIFAR-10-C.

    What is random in image i comes from (``seed``, ``first`` + i): so batches of a set, given ``first``, make the same
    images as the whole does at once; and all severities of a corruption share it, so they may be compared image by
    image. Unlike CIFAR-10-C's bytes the result is not rounded, except by JPEG (see `cached` for bytes).

    Args:
        images: (N, C, H, W) in [0, 1], floating point, grey or of three channels, 3 or more pixels a side.
        name: one of ``CORRUPTIONS``.
        severity: 1 to 5.
        seed: for what is random.
        first: the number of the first image in its set.

    Returns:
        Images in [0, 1] of the same shape, dtype and device.

    >>> corrupt(torch.full((1, 1, 3, 3), 0.5), "brightness", 3)[0, 0, 0]
    tensor([0.6500, 0.6500, 0.6500])
    """
    corruption = known(name, severity, seed, first)
    x = checked(images, channels=(1, 3))
    out = torch.empty_like(images, memory_format=torch.contiguous_format)
    size = max(_VALUES // x[0].numel(), 1)
    with torch.no_grad():
        for start in range(0, len(x), size):
            part = x[start : start + size].contiguous()
            out[start : start + size] = corruption(part, severity, Draws(seed, first + start, part))
    return out


def known(name: str, severity: int, seed: int, first: int = 0) -> Corruption:
    """The corruption of this name, if all that is asked of it exists."""
    if name not in CORRUPTIONS:
        raise UnknownName.of("corruption", name, CORRUPTIONS)
    if isinstance(severity, bool) or severity not in SEVERITIES:
        raise InputError(f"severity must be a whole number from 1 to 5, got {severity!r}")
    for what, number in (("seed", seed), ("first", first)):
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 2**63:
            raise InputError(f"{what} must be a whole number from 0 on, below 2**63, got {number!r}")
    return CORRUPTIONS[name]
