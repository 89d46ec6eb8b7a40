"""Scales from raw scales, in loops that other kernels use, and variances in one sweep over memory."""

from typing import Any

import numpy as np
from numpy import float32 as f

from leanbayes._ops.normal_kernels import _exp, _kernel, _log_1p, _softplus

__all__ = ["scales", "slopes", "squares"]

_BLOCK = 512


@_kernel
def scales(rho: Any, size: Any, out: Any) -> None:
    """Write σ = log(1 + e^ρ) of a block."""
    for i in range(size):
        raw = rho[i]
        out[i] = max(raw, f(0)) + _log_1p(_exp(max(-abs(raw), f(-87))))


@_kernel
def slopes(rho: Any, size: Any, out: Any) -> None:
    """Write dσ/dρ = 1/(1 + e^−ρ) of a block."""
    for i in range(size):
        raw = rho[i]
        e = _exp(max(-abs(raw), f(-87)))
        out[i] = (f(1) if raw > f(0) else e) / (f(1) + e)


@_kernel
def squares(rho: Any, out: Any) -> None:
    """Write σ² with σ = softplus(ρ)."""
    scales, slopes = np.empty(_BLOCK, f), np.empty(_BLOCK, f)
    for block in range(0, rho.size, _BLOCK):
        size = min(_BLOCK, rho.size - block)
        _softplus(rho[block : block + size], size, scales, slopes)
        for i in range(size):
            out[block + i] = scales[i] * scales[i]
