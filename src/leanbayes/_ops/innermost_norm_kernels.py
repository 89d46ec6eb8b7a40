"""Batch norm of activations with the batch innermost in memory: one row of numbers for each channel.

A row mostly fits into the second cache, so its statistics and its result take one sweep over main memory together.
"""

from typing import Any

import numpy as np
from numpy import float32 as f

from leanbayes._ops.normal_kernels import _sums
from leanbayes._ops.row_sums import mean_and_squares, sum_and_product

__all__ = ["norm", "pull_back"]


@_sums
def norm(x: Any, gain: Any, offset: Any, out: Any, mean: Any, variance: Any, inverse: Any, eps: float) -> None:
    """Write γ(x − μ)/s + β for each row, its mean μ, its biased variance, and 1/s = 1/√(variance + ε)."""
    count = x.shape[1]
    for c in range(x.shape[0]):
        row, target = x[c], out[c]
        centre, spread = mean_and_squares(row)
        mean[c], variance[c] = centre, spread / count
        inverse[c] = 1 / np.sqrt(spread / count + eps)
        slope = f(gain[c] * inverse[c])
        level = f(offset[c] - f(centre) * slope)
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
        of_total, of_product = sum_and_product(g, row, middle)
        of_gain[c], of_offset[c] = of_product * inverse[c], of_total
        slope = f(gain[c] * inverse[c])
        bend = f(-gain[c] * inverse[c] ** 3 * of_product / count)
        level = f(-gain[c] * inverse[c] * of_total / count)
        for i in range(count):
            target[i] = slope * g[i] + (bend * (row[i] - middle) + level)
