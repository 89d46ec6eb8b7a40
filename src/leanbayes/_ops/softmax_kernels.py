"""Softmax and logistic function under uncertainty in one sweep over memory: means, mean entropies, NLL of the mean."""

from typing import Any

import numpy as np
from numpy import float32 as f

from leanbayes._ops.normal_kernels import _exp, _kernel, _log, _log_1p, _store

__all__ = ["logistic", "mixture_nll", "moments"]

_BLOCK = 256  # positions at a time, so that all their classes stay in the cache


@_kernel
def _one_point(centre: Any, deviation: Any, noise: Any, size: Any, sums: Any, entropy: Any, z: Any, rows: Any) -> None:
    """Add softmax and entropy of μ + σξ at one point ξ, for a block of positions."""
    classes = centre.shape[0]
    top, total, weighted = rows[0], rows[1], rows[2]
    for i in range(size):
        top[i] = centre[0, i] + deviation[0, i] * noise[0]
    for c in range(classes):
        m, s, row, xi = centre[c], deviation[c], z[c], noise[c]
        for i in range(size):
            row[i] = m[i] + s[i] * xi
        for i in range(size):
            top[i] = max(top[i], row[i])
    for i in range(size):
        total[i] = f(0)
    for i in range(size):
        weighted[i] = f(0)
    for c in range(classes):
        row = z[c]
        for i in range(size):
            away = max(row[i] - top[i], f(-87))
            share = _exp(away)
            row[i] = share
            weighted[i] += share * away
        for i in range(size):
            total[i] += row[i]
    for i in range(size):  # H = log Σe^d − Σ e^d d/Σe^d with the distances d from the largest logit
        top[i] = f(1) / total[i]
    for i in range(size):
        entropy[i] += _log(total[i]) - weighted[i] * top[i]
    for c in range(classes):
        row, mean = z[c], sums[c]
        for i in range(size):
            mean[i] += row[i] * top[i]


@_kernel
def moments(mean: Any, variance: Any, noise: Any, probabilities: Any, entropies: Any) -> None:
    """Write the means over all points, for arrays (examples, classes, positions) and noise (points, classes)."""
    count, classes, positions = mean.shape
    share = f(1) / f(noise.shape[0])
    centre, deviation = np.empty((classes, _BLOCK), f), np.empty((classes, _BLOCK), f)
    sums, z = np.empty((classes, _BLOCK), f), np.empty((classes, _BLOCK), f)
    rows, entropy = np.empty((3, _BLOCK), f), np.empty(_BLOCK, f)
    for n in range(count):
        for start in range(0, positions, _BLOCK):
            size = min(_BLOCK, positions - start)
            for i in range(size):
                entropy[i] = f(0)
            for c in range(classes):
                for i in range(size):
                    centre[c, i] = mean[n, c, start + i]
                for i in range(size):
                    deviation[c, i] = np.sqrt(max(variance[n, c, start + i], f(0)))
                for i in range(size):  # 0 for numbers, NaN otherwise, which maxima would swallow
                    entropy[i] += f(0) * (centre[c, i] + variance[n, c, start + i])
                for i in range(size):
                    sums[c, i] = f(0)
            for p in range(noise.shape[0]):
                _one_point(centre, deviation, noise[p], size, sums, entropy, z, rows)
            for c in range(classes):
                for i in range(size):
                    probabilities[n, c, start + i] = sums[c, i] * share
            for i in range(size):
                entropies[n, start + i] = entropy[i] * share


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
