"""A weight draw and its mirror image in one sweep over memory, and the gradients of both in another."""

from typing import Any

import numpy as np
from numpy import float32 as f

from leanbayes._ops.normal_kernels import _kernel, _softplus, _store

__all__ = ["pair", "pull_back"]

_BLOCK = 512


@_kernel
def pair(first: Any, second: Any, mean: Any, rho: Any, noise: Any) -> None:
    """Write μ + σξ and μ − σξ with σ = softplus(ρ)."""
    scales, slopes = np.empty(_BLOCK, f), np.empty(_BLOCK, f)
    for block in range(0, mean.size, _BLOCK):
        size = min(_BLOCK, mean.size - block)
        end = block + size
        _softplus(rho[block:end], size, scales, slopes)
        xi, m = noise[block:end], mean[block:end]
        for i in range(size):
            scales[i] = scales[i] * xi[i]
        for i in range(size):
            slopes[i] = m[i] - scales[i]
        for i in range(size):
            scales[i] = m[i] + scales[i]
        _store(scales, size, first, block)
        _store(slopes, size, second, block)


@_kernel
def pull_back(of_mean: Any, of_rho: Any, of_first: Any, of_second: Any, rho: Any, noise: Any) -> None:
    """Write the gradients for μ, g₊ + g₋, and for ρ, (g₊ − g₋)ξ dσ/dρ."""
    scales, slopes = np.empty(_BLOCK, f), np.empty(_BLOCK, f)
    for block in range(0, rho.size, _BLOCK):
        size = min(_BLOCK, rho.size - block)
        end = block + size
        _softplus(rho[block:end], size, scales, slopes)
        plus, minus, xi = of_first[block:end], of_second[block:end], noise[block:end]
        for i in range(size):
            scales[i] = plus[i] + minus[i]
        _store(scales, size, of_mean, block)
        for i in range(size):
            scales[i] = (plus[i] - minus[i]) * xi[i]
        for i in range(size):
            scales[i] = scales[i] * slopes[i]
        _store(scales, size, of_rho, block)
