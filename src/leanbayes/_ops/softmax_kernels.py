"""Softmax and logistic function under uncertainty in one sweep over memory: for Gaussian logits, and for draws."""

from typing import Any

import numpy as np
from numpy import float32 as f
from numpy import int32

from leanbayes._ops.normal_kernels import _exp, _kernel, _log, _log_1p, _store

__all__ = ["logistic", "mixture_nll", "moments"]

_BLOCK = 256  # positions at a time, so that all their classes stay in the cache
_FARTHEST = f(-40)
_ROUNDING = f(1e-6)  # of a sum of probabilities, whose logarithm would drown a small entropy
_TINY = f(np.finfo(np.float32).tiny)


@_kernel
def _sums(away: Any, variance: Any, largest: Any, size: Any, share: Any, sums: Any) -> None:
    """Write e^d, and its sums over classes: three over all of them, and three over all but the largest."""
    for row in range(6):
        for i in range(size):
            sums[row, i] = f(0)
    for c in range(away.shape[0]):
        d, v, e = away[c], variance[c], share[c]
        for i in range(size):
            e[i] = _exp(max(d[i], _FARTHEST))
        for row in range(3):
            whole, rest = sums[row], sums[row + 3]
            for i in range(size):
                term = e[i] if row == 0 else (e[i] * v[i] if row == 1 else e[i] * e[i] * v[i])
                whole[i] += term
                rest[i] += f(0) if largest[i] == c else term


@_kernel
def _centres(away: Any, variance: Any, share: Any, sums: Any, largest: Any, c: Any, size: Any, out: Any) -> None:
    """Write mean and standard deviation of z_c − log S_c, as `leanbayes._ops.softmax` explains them."""
    centre, deviation, total = out[0], out[1], out[2]
    for i in range(size):
        total[i] = max(sums[3, i] if largest[i] == c else sums[0, i] - share[c, i], _TINY)
    for i in range(size):
        deviation[i] = (sums[4, i] if largest[i] == c else sums[1, i] - share[c, i] * variance[c, i]) / total[i]
    for i in range(size):
        e = share[c, i]
        square = max(sums[5, i] if largest[i] == c else sums[2, i] - e * e * variance[c, i], f(0))
        square = square / total[i] / total[i]
        centre[i] = away[c, i] - f(0.5) * (deviation[i] - square)
        deviation[i] = np.sqrt(variance[c, i] + square)
    for i in range(size):
        centre[i] -= _log(total[i])


@_kernel
def _expected(centre: Any, deviation: Any, nodes: Any, size: Any, mean: Any, entropy: Any, z: Any) -> None:
    """Write the mean of s(z) over the nodes, and add that of −s(z) log s(z), for a block of positions."""
    for i in range(size):
        mean[i] = f(0)
    for k in range(nodes.shape[1]):
        node, weight = nodes[0, k], nodes[1, k]
        for i in range(size):
            z[i] = centre[i] + node * deviation[i]
        for i in range(size):
            t = _exp(max(-abs(z[i]), f(-87)))
            p = weight * (f(1) if z[i] > f(0) else t) / (f(1) + t)
            mean[i] += p
            entropy[i] += p * (max(-z[i], f(0)) + _log_1p(t))


@_kernel
def moments(
    mean: Any, variance: Any, nodes: Any, probabilities: Any, entropies: Any, n: Any, first: Any, last: Any
) -> None:
    """Write expectations at the positions from ``first`` to ``last`` of example n of (examples, classes, positions).

    ``nodes`` holds the nodes of the quadrature and their weights.
    """
    classes = mean.shape[1]
    away, spread = np.empty((classes, _BLOCK), f), np.empty((classes, _BLOCK), f)
    share, sums, out = np.empty((classes, _BLOCK), f), np.empty((6, _BLOCK), f), np.empty((3, _BLOCK), f)
    top, whole, entropy, bad = np.empty(_BLOCK, f), np.empty(_BLOCK, f), np.empty(_BLOCK, f), np.empty(_BLOCK, f)
    largest = np.empty(_BLOCK, int32)
    for start in range(first, last, _BLOCK):
        size = min(_BLOCK, last - start)
        for i in range(size):
            top[i] = f(-np.inf)
            largest[i] = int32(0)
            bad[i] = f(0)
            whole[i] = f(0)
            entropy[i] = f(0)
        for c in range(classes):
            m, v = away[c], spread[c]
            for i in range(size):
                m[i] = mean[n, c, start + i]
            for i in range(size):
                v[i] = variance[n, c, start + i]
            for i in range(size):  # 0 for numbers, NaN otherwise, which maxima would swallow
                bad[i] += f(0) * (m[i] + v[i])
            for i in range(size):
                largest[i] = int32(c) if m[i] > top[i] else largest[i]
            for i in range(size):
                top[i] = max(top[i], m[i])
            for i in range(size):
                v[i] = max(v[i], f(0))
        for c in range(classes):
            m = away[c]
            for i in range(size):
                m[i] -= top[i]
        _sums(away, spread, largest, size, share, sums)
        for c in range(classes):
            _centres(away, spread, share, sums, largest, c, size, out)
            _expected(out[0], out[1], nodes, size, away[c], entropy, out[2])
            m = away[c]
            for i in range(size):
                whole[i] += m[i]
        for i in range(size):
            top[i] = f(1) / whole[i]
        for i in range(size):
            correction = f(0) if abs(whole[i] - f(1)) < _ROUNDING else whole[i] * _log(whole[i])
            entropies[n, start + i] = max((entropy[i] + correction) * top[i], f(0)) + bad[i]
        for c in range(classes):
            m = away[c]
            for i in range(size):
                probabilities[n, c, start + i] = m[i] * top[i]


@_kernel
def logistic(mean: Any, variance: Any, nodes: Any, yes: Any, no: Any, entropies: Any) -> None:
    """Write E s(z), E s(−z) and E H(s(z)) for Gaussian z; ``nodes`` holds the nodes and their weights."""
    z, deviation = np.empty(_BLOCK, f), np.empty(_BLOCK, f)
    one, two, three = np.empty(_BLOCK, f), np.empty(_BLOCK, f), np.empty(_BLOCK, f)
    for start in range(0, mean.size, _BLOCK):
        size = min(_BLOCK, mean.size - start)
        centre, spread = mean[start : start + size], variance[start : start + size]
        for i in range(size):
            deviation[i] = np.sqrt(max(spread[i], f(0)))
        for i in range(size):
            one[i] = f(0)
            two[i] = f(0)
            three[i] = f(0)
        for k in range(nodes.shape[1]):
            node, weight = nodes[0, k], nodes[1, k]
            for i in range(size):
                z[i] = centre[i] + node * deviation[i]
            for i in range(size):
                distance = min(abs(z[i]), f(87))
                t = _exp(-distance)
                larger = weight / (f(1) + t)
                smaller = larger * t
                one[i] += larger if z[i] > f(0) else smaller
                two[i] += smaller if z[i] > f(0) else larger
                three[i] += weight * _log_1p(t) + distance * smaller
        for i in range(size):  # 0 for numbers, NaN otherwise, which minima would swallow
            z[i] = f(0) * (centre[i] + spread[i])
        for i in range(size):
            one[i] = min(one[i], f(1)) + z[i]
        for i in range(size):
            two[i] = min(two[i], f(1)) + z[i]
        for i in range(size):
            three[i] += z[i]
        _store(one, size, yes, start)
        _store(two, size, no, start)
        _store(three, size, entropies, start)


@_kernel
def _log_likelihood(logits: Any, targets: Any, coldness: Any, size: Any, out: Any, z: Any, rows: Any) -> None:
    """Write log p(target) of one draw, for a block of positions."""
    classes = logits.shape[1]
    top, total = rows[0], rows[1]
    for i in range(size):
        out[i] = coldness * logits[i, targets[i]]
    for c in range(classes):
        row = z[c]
        for i in range(size):
            row[i] = coldness * logits[i, c]
    for i in range(size):
        top[i] = z[0, i]
    for c in range(1, classes):
        row = z[c]
        for i in range(size):
            top[i] = max(top[i], row[i])
    for i in range(size):
        total[i] = f(0)
    for c in range(classes):
        row = z[c]
        for i in range(size):
            total[i] += _exp(max(row[i] - top[i], f(-87)))
    for i in range(size):
        out[i] = out[i] - top[i] - _log(total[i])


@_kernel
def mixture_nll(logits: Any, targets: Any, coldness: Any) -> Any:
    """Return −Σ log mean p(target), for draws of finite logits (draws, targets, classes) times a coldness."""
    draws, count, classes = logits.shape
    each, z = np.empty((draws, _BLOCK), f), np.empty((classes, _BLOCK), f)
    rows = np.empty((2, _BLOCK), f)
    result = 0.0
    for start in range(0, count, _BLOCK):
        size = min(_BLOCK, count - start)
        for d in range(draws):
            part = logits[d, start : start + size]
            _log_likelihood(part, targets[start : start + size], f(coldness), size, each[d], z, rows)
        top, total = rows[0], rows[1]
        for i in range(size):
            top[i] = each[0, i]
        for d in range(1, draws):
            row = each[d]
            for i in range(size):
                top[i] = max(top[i], row[i])
        for i in range(size):
            total[i] = f(0)
        for d in range(draws):
            row = each[d]
            for i in range(size):
                total[i] += _exp(max(row[i] - top[i], f(-87)))
        for i in range(size):
            result -= np.float64(top[i] + _log(total[i]))
    return result + count * np.log(np.float64(draws))
