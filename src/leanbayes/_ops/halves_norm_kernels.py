"""Batch norm whose gains and offsets differ between the halves of a batch, in loops over the positions of a channel.

The arrays have the axes example, channel and position. Sums over the positions of one channel of one example are the
smallest unit, so no result depends on how the examples are shared out among threads.
"""

from typing import Any

from leanbayes._ops.normal_kernels import _kernel, _sums
from leanbayes._ops.row_sums import mean_and_squares, sum_and_product

__all__ = ["affine", "pull_back", "statistics", "sums"]


@_sums
def statistics(x: Any, means: Any, squares: Any) -> None:
    """Write the mean x̄ of each channel of each example, and Σ(x − x̄)²."""
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            means[n, c], squares[n, c] = mean_and_squares(x[n, c])


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
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            totals[n, c], products[n, c] = sum_and_product(gradient[n, c], x[n, c], means[c])


@_kernel
def pull_back(gradient: Any, x: Any, slopes: Any, out: Any, bends: Any, offsets: Any) -> None:
    """Write ag + bx + c, with a of each channel of each example, and b and c of each channel."""
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            g, row, target = gradient[n, c], x[n, c], out[n, c]
            slope, bend, offset = slopes[n, c], bends[c], offsets[c]
            for i in range(x.shape[2]):
                target[i] = slope * g[i] + (bend * row[i] + offset)
