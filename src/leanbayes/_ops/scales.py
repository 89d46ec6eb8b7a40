"""Variances from raw scales: torch takes a dozen nanoseconds for the softplus of one number, a kernel one or two."""

import numpy as np
import torch
from torch import Tensor

from leanbayes._ops import compiled
from leanbayes._ops.normal import has_kernel
from leanbayes._ops.threads import share_out

__all__ = ["squared_softplus"]

_LEAST = 2**12  # numbers, from which the kernel is worth its call
_PIECE = 2**16  # numbers that a thread takes at a time


def squared_softplus(rho: Tensor) -> Tensor | None:
    """Return log(1 + e^ρ)² for a plain float32 tensor on the CPU, without a gradient; None for any other.

    >>> squared_softplus(torch.zeros(3, dtype=torch.float64)) is None
    True
    """
    if torch.is_grad_enabled() and rho.requires_grad:
        return None
    if not has_kernel(rho, rho.numel(), _LEAST) or not rho.is_contiguous() or not compiled.available():
        return None
    from leanbayes._ops.scale_kernels import squares  # numba takes half a second, which small models need not wait for

    out = torch.empty_like(rho, requires_grad=False)
    raw, squared = (np.asarray(tensor.detach()).reshape(-1) for tensor in (rho, out))

    def piece(start: int) -> None:
        squares(raw[start : start + _PIECE], squared[start : start + _PIECE])

    share_out(piece, range(0, raw.size, _PIECE))
    return out
