"""Batch norm of activations with the batch innermost in memory: one row of numbers for each channel.

A row mostly fits into the second cache, so its statistics and its result take one sweep over main memory together. Long
sums are made of the sums of blocks, which keeps their digits.
"""

from typing import Any

import numpy as np
from numpy import float32 as f

from leanbayes._ops.normal_kernels import _sums

__all__ = ["norm", "pull_back"]

_BLOCK = 1024


@_sums
def norm(x: Any, gain: Any, offset: Any, out: Any, mean: Any, variance: Any, inverse: Any, eps: float) -> None:
    """Write γ(x − μ)/s + β for each row, its mean μ, its biased variance, and 1/s = 1/√(variance + ε)."""
    count = x.shape[1]
    for c in range(x.shape[0]):
        row, target, whole = x[c], out[c], np.float64(0)
        for start in range(0, count, _BLOCK):
            block, total = row[start : start + _BLOCK], f(0)
            for i in range(block.size):  # an index that cannot be negative makes this a loop over vectors
                total += block[i]
            whole += total
        middle, spread = f(whole / count), np.float64(0)
        for start in range(0, count, _BLOCK):
            block, total = row[start : start + _BLOCK], f(0)
            for i in range(block.size):
                away = block[i] - middle
                total += away * away
            spread += total
        mean[c], variance[c] = whole / count, spread / count
        inverse[c] = 1 / np.sqrt(spread / count + eps)
        slope = f(gain[c] * inverse[c])
        level = f(offset[c] - middle * slope)
        for i in range(count):
            target[i] = slope * row[i] + level


@_sums
def pull_back(
    gradient: Any, x: Any, gain: Any, mean: Any, inverse: Any, of_x: Any, of_gain: Any, of_offset: Any
) -> None:
    """Write the gradients: (γ/s)(g − mean(g) − x̂ mean(g x̂)) for x with x̂ = (x − μ)/s, Σ g x̂ for γ and Σ g for β."""
    count = x.shape[1]
    for c in range(x.shape[0]):
        g, row, target, middle = gradient[c], x[c], of_x[c], f(mean[c])
        of_total, of_product = np.float64(0), np.float64(0)
        for start in range(0, count, _BLOCK):
            total, product = f(0), f(0)
            block, slopes = row[start : start + _BLOCK], g[start : start + _BLOCK]
            for i in range(block.size):
                total += slopes[i]
                product += slopes[i] * (block[i] - middle)
            of_total += total
            of_product += product
        of_gain[c], of_offset[c] = of_product * inverse[c], of_total
        slope = f(gain[c] * inverse[c])
        bend = f(-gain[c] * inverse[c] ** 3 * of_product / count)
        level = f(-gain[c] * inverse[c] * of_total / count)
        for i in range(count):
            target[i] = slope * g[i] + (bend * (row[i] - middle) + level)
