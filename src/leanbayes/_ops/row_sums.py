"""Sums over a row of numbers in memory, in loops that the compiler turns into vector instructions.

Long sums are made of the sums of blocks, which keeps their digits.
"""

from typing import Any

import numpy as np
from numpy import float32 as f

from leanbayes._ops.normal_kernels import _sums

__all__ = ["mean_and_squares", "sum_and_product"]

_BLOCK = 1024


@_sums
def mean_and_squares(row: Any) -> Any:
    """Return the mean x̄ of the numbers in float64, and Σ(x − x̄)²."""
    whole, spread = np.float64(0), np.float64(0)
    for start in range(0, row.size, _BLOCK):
        block, total = row[start : start + _BLOCK], f(0)
        for i in range(block.size):  # an index that cannot be negative makes this a loop over vectors
            total += block[i]
        whole += total
    middle = f(whole / row.size)
    for start in range(0, row.size, _BLOCK):
        block, total = row[start : start + _BLOCK], f(0)
        for i in range(block.size):
            away = block[i] - middle
            total += away * away
        spread += total
    return whole / row.size, spread


@_sums
def sum_and_product(gradient: Any, row: Any, middle: Any) -> Any:
    """Return Σg and Σg(x − μ), with one number μ for the row."""
    of_gradient, of_product = np.float64(0), np.float64(0)
    for start in range(0, row.size, _BLOCK):
        block, slopes = row[start : start + _BLOCK], gradient[start : start + _BLOCK]
        total, product = f(0), f(0)
        for i in range(block.size):
            total += slopes[i]
            product += slopes[i] * (block[i] - middle)
        of_gradient += total
        of_product += product
    return of_gradient, of_product
