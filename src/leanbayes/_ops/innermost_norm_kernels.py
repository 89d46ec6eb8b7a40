"""Batch norm of activations with the batch innermost in memory: one row of numbers for each channel.

A row mostly fits into the second cache, so its statistics and its result take one sweep over main memory together.
"""

from typing import Any

import numpy as np
from numpy import float32 as f

from leanbayes._ops.normal_kernels import _kernel, _sums
from leanbayes._ops.row_sums import mean_and_squares, sum_and_product

__all__ = ["norm", "pull_back", "rectified", "rectified_sum", "scaled"]


@_kernel
def _scale(row: Any, a: Any, m: Any, b: Any, target: Any) -> None:
    """Write a(x − m) + b without reordering the operations, whose bits must be those of the other kernels."""
    for i in range(row.size):
        target[i] = a * (row[i] - m) + b


@_kernel
def scaled(x: Any, slope: Any, centre: Any, level: Any, out: Any) -> None:
    """Write a(x − m) + b for each row."""
    for c in range(x.shape[0]):
        _scale(x[c], slope[c], centre[c], level[c], out[c])


@_kernel
def rectified(x: Any, slope: Any, centre: Any, level: Any, out: Any) -> None:
    """Write max(a(x − m) + b, 0) for each row; what is no number stays so."""
    for c in range(x.shape[0]):
        row, target, a, m, b = x[c], out[c], slope[c], centre[c], level[c]
        for i in range(row.size):
            value = a * (row[i] - m) + b
            target[i] = f(0) if value < f(0) else value


@_kernel
def rectified_sum(x: Any, slope: Any, centre: Any, level: Any, plus: Any, out: Any) -> None:
    """Write max((a(x − m) + b) + p, 0) for each row."""
    for c in range(x.shape[0]):
        row, term, target, a, m, b = x[c], plus[c], out[c], slope[c], centre[c], level[c]
        for i in range(row.size):
            value = (a * (row[i] - m) + b) + term[i]
            target[i] = f(0) if value < f(0) else value


@_sums
def norm(x: Any, gain: Any, offset: Any, out: Any, mean: Any, variance: Any, inverse: Any, eps: float) -> None:
    """Write γ(x − μ)/s + β for each row, its mean μ, its biased variance, and 1/s = 1/√(variance + ε).

    `scaled` computes the same bits again from a = γ/s, m = μ and b = β.
    """
    count = x.shape[1]
    for c in range(x.shape[0]):
        row = x[c]
        centre, spread = mean_and_squares(row)
        mean[c], variance[c] = centre, spread / count
        inverse[c] = 1 / np.sqrt(spread / count + eps)
        _scale(row, f(gain[c] * inverse[c]), f(centre), offset[c], out[c])


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
