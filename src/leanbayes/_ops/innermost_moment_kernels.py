"""Sweeps of moments over activations (channels, positions, batch): a number of a channel is a number of a whole plane.

They compute what the kernels of `leanbayes._ops.moment_kernels` compute for images whose channels lie innermost.
"""

from typing import Any

from numpy import float32 as f

from leanbayes._ops.box_kernels import sum_windows
from leanbayes._ops.moment_kernels import rectify
from leanbayes._ops.normal_kernels import _kernel

__all__ = ["neighbour_products", "norm_means", "norm_variances", "rectify_and_sum", "sum_windows"]

_BLOCK = 512  # numbers that stay in the first cache while they are rectified and summed


@_kernel
def rectify_and_sum(mean: Any, variance: Any, out_mean: Any, out_variance: Any, sums: Any) -> None:
    """Rectify, and add E, E², Var and Cov(z, relu(z)) over the positions to ``sums``, (channels, 4, batch)."""
    channels, positions, batch = mean.shape
    rows = max(1, _BLOCK // batch)
    for c in range(channels):
        plain, squares, spread, covariance = sums[c, 0], sums[c, 1], sums[c, 2], sums[c, 3]
        for first in range(0, positions, rows):
            last = min(positions, first + rows)
            rectify(
                mean[c, first:last].reshape(-1),
                variance[c, first:last].reshape(-1),
                out_mean[c, first:last].reshape(-1),
                out_variance[c, first:last].reshape(-1),
            )
            for p in range(first, last):
                z, x, v = mean[c, p], out_mean[c, p], out_variance[c, p]
                for n in range(batch):
                    plain[n] += x[n]
                for n in range(batch):
                    squares[n] += x[n] * x[n]
                for n in range(batch):
                    spread[n] += v[n]
                for n in range(batch):  # σ² P(z > 0), from E z·relu(z) = E relu(z)²
                    covariance[n] += v[n] + x[n] * (x[n] - z[n])


@_kernel
def norm_means(x: Any, factor: Any, start: Any, out: Any) -> None:
    """Write factor·x + start, with numbers for each channel, for arrays (channels, numbers)."""
    for c in range(x.shape[0]):
        values, target, slope, level = x[c], out[c], factor[c], start[c]
        for i in range(values.size):
            target[i] = slope * values[i] + level


@_kernel
def norm_variances(
    x: Any, variance: Any, centre: Any, on_variance: Any, on_square: Any, added: Any, out: Any, sums: Any
) -> None:
    """Write A·σ² + B·(x − m)² + D, and add σ² and (x − m)² to ``sums``, (channels, 2, batch).

    Without B nothing depends on x. It is then not read, and the sum of the squares stays 0.
    """
    channels, positions, batch = x.shape
    for c in range(channels):
        middle, first, second, third = centre[c], on_variance[c], on_square[c], added[c]
        spread, squares = sums[c, 0], sums[c, 1]
        for p in range(positions):
            a, v, o = x[c, p], variance[c, p], out[c, p]
            for n in range(batch):
                o[n] = first * v[n] + third
            for n in range(batch):
                spread[n] += v[n]
            if second != f(0):
                for n in range(batch):
                    squares[n] += (a[n] - middle) * (a[n] - middle)
                for n in range(batch):
                    o[n] += second * (a[n] - middle) * (a[n] - middle)


@_kernel
def neighbour_products(x: Any, step_down: Any, step_across: Any, sums: Any) -> None:
    """Add x_p x_q for neighbours p and q below each other, and beside each other, to ``sums``, (channels, 2, batch).

    x is (channels, height, width, batch). Every so many rows count, by ``step_down`` and ``step_across``.
    """
    channels, height, width, batch = x.shape
    for c in range(channels):
        below, beside = sums[c, 0], sums[c, 1]
        for row in range(0, height - 1, step_down):
            for column in range(width):
                a, b = x[c, row, column], x[c, row + 1, column]
                for n in range(batch):
                    below[n] += a[n] * b[n]
        for row in range(0, height, step_across):
            for column in range(width - 1):
                a, b = x[c, row, column], x[c, row, column + 1]
                for n in range(batch):
                    beside[n] += a[n] * b[n]
