"""The mean softmax and its mean entropy over points, for Gaussian logits, in one sweep over memory."""

from typing import Any

import numpy as np
from numpy import float32 as f

from leanbayes._ops.normal_kernels import _exp, _kernel, _log

__all__ = ["moments"]

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
