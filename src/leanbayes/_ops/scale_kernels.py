"""Variances from raw scales, in one sweep over memory."""

from typing import Any

import numpy as np
from numpy import float32 as f

from leanbayes._ops.normal_kernels import _kernel, _softplus

__all__ = ["squares"]

_BLOCK = 512


@_kernel
def squares(rho: Any, out: Any) -> None:
    """Write σ² with σ = softplus(ρ)."""
    scales, slopes = np.empty(_BLOCK, f), np.empty(_BLOCK, f)
    for block in range(0, rho.size, _BLOCK):
        size = min(_BLOCK, rho.size - block)
        _softplus(rho[block : block + size], size, scales, slopes)
        for i in range(size):
            out[block + i] = scales[i] * scales[i]
