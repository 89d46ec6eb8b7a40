"""The corruptions by name, and `corrupt`, which applies one of them."""

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

CORRUPTIONS: dict[str, Corruption] = {
    corruption.name: corruption for corruption in (*NOISES, *BLURS, *WEATHERS, *DIGITALS)
}
"""The 19 corruptions of CIFAR-10-C (Hendrycks and Dietterich 2019), by name."""

_VALUES_AT_A_TIME = 2**22  # keeps intermediate results small


def corrupt(images: Tensor, name: str, severity: int, *, seed: int = 0, first: int = 0) -> Tensor:
    """Apply one of the 19 corruptions of CIFAR-10-C to images.

    The random numbers of image i depend on (``seed``, ``first`` + i) alone. Batches of a set, each with its ``first``,
    therefore give the same images as the whole set at once. All severities of a corruption share these numbers, so
    they can be compared image by image. The result is not rounded to bytes as in CIFAR-10-C, except by JPEG; see
    `cached` for bytes.

    Args:
        images: floating-point images (N, C, H, W) in [0, 1] with 1 or 3 channels and 3 or more pixels on each side.
        name: one of ``CORRUPTIONS``.
        severity: 1 to 5.
        seed: decides all random numbers.
        first: the index of the first image in its set.

    Returns:
        Images in [0, 1] of the same shape, dtype and device.

    >>> corrupt(torch.full((1, 1, 3, 3), 0.5), "brightness", 3)[0, 0, 0]
    tensor([0.6500, 0.6500, 0.6500])
    """
    corruption = known(name, severity, seed, first)
    x = checked(images, channels=(1, 3))
    out = torch.empty_like(images, memory_format=torch.contiguous_format)
    size = max(_VALUES_AT_A_TIME // x[0].numel(), 1)
    with torch.no_grad():
        for start in range(0, len(x), size):
            part = x[start : start + size].contiguous()
            out[start : start + size] = corruption(part, severity, Draws(seed, first + start, part))
    return out


def known(name: str, severity: int, seed: int, first: int = 0) -> Corruption:
    """Return the corruption of this name, and refuse a severity or seed that is not possible."""
    if name not in CORRUPTIONS:
        raise UnknownName.of("corruption", name, CORRUPTIONS)
    if isinstance(severity, bool) or severity not in SEVERITIES:
        raise InputError(f"severity must be a whole number from 1 to 5, got {severity!r}")
    for what, number in (("seed", seed), ("first", first)):
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 2**63:
            raise InputError(f"{what} must be a whole number from 0 on, below 2**63, got {number!r}")
    return CORRUPTIONS[name]
