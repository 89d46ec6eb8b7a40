"""Rotation of images."""

import math

import torch
from torch import Tensor

from leanbayes.errors import InputError
from leanbayes.lab.data.shifts.corruption import checked
from leanbayes.lab.data.shifts.filters import interpolate

__all__ = ["rotate"]


def rotate(images: Tensor, degrees: float) -> Tensor:
    """Rotate images (N, C, H, W) in [0, 1] counterclockwise about their centre, with bilinear interpolation.

    Pixels that come from outside the image are black.

    >>> x = torch.eye(4)[None, None]
    >>> bool(torch.allclose(rotate(x, 90), x.rot90(1, (2, 3))))
    True
    """
    if not math.isfinite(degrees):
        raise InputError(f"degrees must be a finite number, got {degrees}")
    x = checked(images)
    height, width = x.shape[2:]
    turn = math.radians(degrees)
    h = torch.arange(height, dtype=torch.float64, device=x.device).view(1, -1, 1) - (height - 1) / 2
    w = torch.arange(width, dtype=torch.float64, device=x.device) - (width - 1) / 2
    # An output pixel comes from where the inverse rotation leads. Rows are counted downward.
    rows = math.cos(turn) * h + math.sin(turn) * w + (height - 1) / 2
    columns = math.cos(turn) * w - math.sin(turn) * h + (width - 1) / 2
    return interpolate(x, rows, columns, None).clamp(0, 1).to(images.dtype)
