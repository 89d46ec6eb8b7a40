"""The softmax of random scores in one sweep over memory."""

from typing import Any

import numpy as np
from numpy import float32 as f

from leanbayes._ops.normal_kernels import _exp, _kernel, _sums

__all__ = ["softmax_spread"]

_LANES = 16


@_kernel
def _largest(x: Any, lanes: Any) -> Any:
    """Return the largest number, by the largest of each lane, because one after the other would take longer."""
    for j in range(_LANES):
        lanes[j] = x[min(j, x.size - 1)]
    for start in range(0, x.size - _LANES + 1, _LANES):
        for j in range(_LANES):
            lanes[j] = max(lanes[j], x[start + j])
    for i in range(x.size // _LANES * _LANES, x.size):
        lanes[0] = max(lanes[0], x[i])
    top = lanes[0]
    for j in range(_LANES):
        top = max(top, lanes[j])
    return top


@_sums
def _sum(x: Any) -> Any:
    total = f(0)
    for i in range(x.size):
        total += x[i]
    return total


@_kernel
def softmax_spread(scores: Any, variance: Any, both: Any, scale: Any) -> None:
    """Write the softmax p of scores times a scale over them, and p² and Var p side by side, for arrays of rows.

    Var p_i = p_i²((1 − p_i)²v_i + Σ_{j≠i} p_j²v_j) to first order, where v is the variance of the scaled scores. The
    variances are overwritten.
    """
    count = scores.shape[1]
    lanes, square = np.empty(_LANES, f), f(scale) * f(scale)
    for n in range(scores.shape[0]):
        p, v, squares, spreads = scores[n], variance[n], both[n, :count], both[n, count:]
        for i in range(count):
            p[i] *= f(scale)
        top = _largest(p, lanes)
        for i in range(count):  # NaN, which a largest number may swallow, stays
            away = p[i] - top
            p[i] = away if away != away else _exp(max(away, f(-87)))
        share = f(1) / _sum(p)
        for i in range(count):
            own = p[i] * share
            p[i] = own
            squares[i] = own * own
            v[i] = own * own * (v[i] * square)
        total = _sum(v)
        for i in range(count):
            rest = f(1) - p[i]
            spreads[i] = rest * rest * v[i] + squares[i] * max(total - v[i], f(0))
