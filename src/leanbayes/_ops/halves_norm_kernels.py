"""Batch norm whose gains and offsets differ between the halves of a batch, in loops over the positions of a channel.

The arrays have the axes example, channel and position. Sums over the positions of one channel of one example are the
smallest unit, so no result depends on how the examples are shared out among threads. Long sums are made of the sums of
blocks, which keeps their digits.
"""

from typing import Any

import numpy as np
from numpy import float32 as f

from leanbayes._ops.normal_kernels import _kernel, _sums

__all__ = ["affine", "pull_back", "statistics", "sums"]

_BLOCK = 1024


@_sums
def statistics(x: Any, means: Any, squares: Any) -> None:
    """Write the mean x̄ of each channel of each example, and Σ(x − x̄)²."""
    count = x.shape[2]
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            row = x[n, c]
            whole = np.float64(0)
            for start in range(0, count, _BLOCK):
                block, total = row[start : start + _BLOCK], f(0)
                for i in range(block.size):  # an index that cannot be negative makes this a loop over vectors
                    total += block[i]
                whole += total
            mean, spread = f(whole / count), np.float64(0)
            for start in range(0, count, _BLOCK):
                block, total = row[start : start + _BLOCK], f(0)
                for i in range(block.size):
                    away = block[i] - mean
                    total += away * away
                spread += total
            means[n, c], squares[n, c] = mean, spread


@_kernel
def affine(x: Any, slopes: Any, offsets: Any, out: Any) -> None:
    """Write ax + b, with a and b of each channel of each example."""
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            row, target, slope, offset = x[n, c], out[n, c], slopes[n, c], offsets[n, c]
            for i in range(x.shape[2]):
                target[i] = slope * row[i] + offset


@_sums
def sums(gradient: Any, x: Any, totals: Any, products: Any, means: Any) -> None:
    """Write Σg and Σg(x − μ) of each channel of each example, with the mean μ of the channel."""
    count = x.shape[2]
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            g, row, mean = gradient[n, c], x[n, c], means[c]
            of_gradient, of_product = np.float64(0), np.float64(0)
            for start in range(0, count, _BLOCK):
                block, slopes = row[start : start + _BLOCK], g[start : start + _BLOCK]
                total, product = f(0), f(0)
                for i in range(block.size):
                    total += slopes[i]
                    product += slopes[i] * (block[i] - mean)
                of_gradient += total
                of_product += product
            totals[n, c], products[n, c] = of_gradient, of_product


@_kernel
def pull_back(gradient: Any, x: Any, slopes: Any, out: Any, bends: Any, offsets: Any) -> None:
    """Write ag + bx + c, with a of each channel of each example, and b and c of each channel."""
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            g, row, target = gradient[n, c], x[n, c], out[n, c]
            slope, bend, offset = slopes[n, c], bends[c], offsets[c]
            for i in range(x.shape[2]):
                target[i] = slope * g[i] + (bend * row[i] + offset)
