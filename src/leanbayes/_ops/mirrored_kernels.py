"""A weight draw and its mirror image in one sweep over memory, and the gradients of both in another."""

from typing import Any

import numpy as np
from numpy import float32 as f
from numpy import uint64

from leanbayes._ops.normal_kernels import _PAIRS, _STEP, _kernel, _normals
from leanbayes._ops.scale_kernels import scales, slopes

__all__ = ["pair", "pair_of_seed", "pull_back", "pull_back_of_seed"]

_BLOCK = 512


@_kernel
def pair(first: Any, second: Any, mean: Any, rho: Any, noise: Any) -> None:
    """Write μ + σξ and μ − σξ with σ = softplus(ρ)."""
    offsets = np.empty(_BLOCK, f)
    for block in range(0, mean.size, _BLOCK):
        size = min(_BLOCK, mean.size - block)
        end = block + size
        scales(rho[block:end], size, offsets)
        xi, m, plus, minus = noise[block:end], mean[block:end], first[block:end], second[block:end]
        for i in range(size):
            offsets[i] = offsets[i] * xi[i]
        for i in range(size):
            plus[i] = m[i] + offsets[i]
        for i in range(size):
            minus[i] = m[i] - offsets[i]


@_kernel
def pair_of_seed(seed: Any, first: Any, second: Any, mean: Any, rho: Any) -> None:
    """Write what `pair` does for the noise that `leanbayes._ops.normal_kernels.fill` makes of a seed."""
    offsets, xi = np.empty(_BLOCK, f), np.empty(_BLOCK, f)
    for block in range(0, mean.size, _BLOCK):
        size = min(_BLOCK, mean.size - block)
        end = block + size
        _normals(seed + uint64(block // 2) * _STEP, xi[:_PAIRS], xi[_PAIRS:])
        scales(rho[block:end], size, offsets)
        m, plus, minus = mean[block:end], first[block:end], second[block:end]
        for i in range(size):
            offsets[i] = offsets[i] * xi[i]
        for i in range(size):
            plus[i] = m[i] + offsets[i]
        for i in range(size):
            minus[i] = m[i] - offsets[i]


@_kernel
def pull_back(of_mean: Any, of_rho: Any, of_first: Any, of_second: Any, rho: Any, noise: Any) -> None:
    """Write the gradients for μ, g₊ + g₋, and for ρ, (g₊ − g₋)ξ dσ/dρ."""
    slope, product = np.empty(_BLOCK, f), np.empty(_BLOCK, f)
    for block in range(0, rho.size, _BLOCK):
        size = min(_BLOCK, rho.size - block)
        end = block + size
        slopes(rho[block:end], size, slope)
        plus, minus, xi = of_first[block:end], of_second[block:end], noise[block:end]
        for i in range(size):
            product[i] = (plus[i] - minus[i]) * xi[i]
        out = of_mean[block:end]
        for i in range(size):
            out[i] = plus[i] + minus[i]
        out = of_rho[block:end]
        for i in range(size):
            out[i] = product[i] * slope[i]


@_kernel
def pull_back_of_seed(seed: Any, of_first: Any, of_second: Any, rho: Any) -> None:
    """Overwrite g₊ by the gradient for μ and g₋ by that for ρ, for the noise of a seed."""
    slope, xi = np.empty(_BLOCK, f), np.empty(_BLOCK, f)
    for block in range(0, rho.size, _BLOCK):
        size = min(_BLOCK, rho.size - block)
        end = block + size
        _normals(seed + uint64(block // 2) * _STEP, xi[:_PAIRS], xi[_PAIRS:])
        slopes(rho[block:end], size, slope)
        plus, minus = of_first[block:end], of_second[block:end]
        for i in range(size):
            xi[i] = (plus[i] - minus[i]) * xi[i]
        for i in range(size):
            plus[i] = plus[i] + minus[i]
        for i in range(size):
            minus[i] = xi[i] * slope[i]
