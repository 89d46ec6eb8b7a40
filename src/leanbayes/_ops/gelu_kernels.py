"""Moments of GELU in loops without branches, which the compiler turns into vector instructions."""

from typing import Any

import numpy as np
from numpy import float32 as f

from leanbayes._ops.normal_kernels import _exp, _kernel

__all__ = ["gelu"]

_BLOCK = 512
_SMALL = f(0.1)  # variances, up to which six terms of the series differ from ten by 1e-8 of σ
_DENSITY = f(0.3989422804014327)  # φ(0)
_ROOT_HALF = f(0.7071067811865476)
_FARTHEST = f(13)  # where φ² is 0 in float32


@_kernel
def _six_terms(x: Any, least: Any, share: Any) -> Any:
    h2 = x * x - f(1)
    h3 = x * h2 - f(2) * x
    h4 = x * h3 - f(3) * h2
    h5 = x * h4 - f(4) * h3
    h6 = x * h5 - f(5) * h4
    q2, q3, q4, q5, q6 = f(1) - least * h2, x - least * h3, h2 - least * h4, h3 - least * h5, h4 - least * h6
    series = q5 * q5 + share * f(1 / 6) * (q6 * q6)
    series = q3 * q3 + share * f(1 / 4) * (q4 * q4 + share * f(1 / 5) * series)
    return f(1 / 2) * (q2 * q2 + share * f(1 / 3) * series)


@_kernel
def _ten_terms(x: Any, least: Any, share: Any) -> Any:
    h2 = x * x - f(1)
    h3 = x * h2 - f(2) * x
    h4 = x * h3 - f(3) * h2
    h5 = x * h4 - f(4) * h3
    h6 = x * h5 - f(5) * h4
    h7 = x * h6 - f(6) * h5
    h8 = x * h7 - f(7) * h6
    h9 = x * h8 - f(8) * h7
    h10 = x * h9 - f(9) * h8
    q2, q3, q4, q5, q6 = f(1) - least * h2, x - least * h3, h2 - least * h4, h3 - least * h5, h4 - least * h6
    q7, q8, q9, q10 = h5 - least * h7, h6 - least * h8, h7 - least * h9, h8 - least * h10
    series = q9 * q9 + share * f(1 / 10) * (q10 * q10)
    series = q7 * q7 + share * f(1 / 8) * (q8 * q8 + share * f(1 / 9) * series)
    series = q5 * q5 + share * f(1 / 6) * (q6 * q6 + share * f(1 / 7) * series)
    series = q3 * q3 + share * f(1 / 4) * (q4 * q4 + share * f(1 / 5) * series)
    return f(1 / 2) * (q2 * q2 + share * f(1 / 3) * series)


@_kernel
def gelu(mean: Any, variance: Any, centre: Any, spread: Any) -> None:
    """Write E f(z) over the centre f(μ), except where v = 0, and Var f(z); `leanbayes._ops.gelu` has the formulas.

    The tail of Φ is that of Abramowitz and Stegun 7.1.26, which errs by 1e-7. The h are the polynomials of Hermite, and
    the q are the terms of the series without their powers. Several short loops take half the time of a long one, in
    which every step would wait for the one before.
    """
    rows = np.empty((5, _BLOCK), f)
    least, root, t, e, slope = rows[0], rows[1], rows[2], rows[3], rows[4]
    for start in range(0, mean.size, _BLOCK):
        size = min(_BLOCK, mean.size - start)
        end = start + size
        ms, vs, out, spreads = mean[start:end], variance[start:end], centre[start:end], spread[start:end]
        large = np.int32(0)
        for i in range(size):
            large += np.int32(vs[i] > _SMALL)
        for i in range(size):
            v = vs[i]
            spreads[i] = v if v != v else max(v, f(0))
        for i in range(size):
            least[i] = f(1) / (f(1) + spreads[i])
        for i in range(size):
            root[i] = np.sqrt(least[i])
        for i in range(size):
            t[i] = ms[i] * root[i]
        for i in range(size):
            e[i] = _exp(max(f(-0.5) * t[i] * t[i], f(-87)))
        for i in range(size):
            u = f(1) / (f(1) + f(0.3275911) * _ROOT_HALF * abs(t[i]))
            p = f(1.421413741) + u * (f(-1.453152027) + u * f(1.061405429))
            tail = f(0.5) * u * (f(0.254829592) + u * (f(-0.284496736) + u * p)) * e[i]
            slope[i] = f(1) - tail if t[i] > f(0) else tail
        for i in range(size):
            e[i] *= _DENSITY
        for i in range(size):
            v = spreads[i]
            expected = ms[i] * slope[i] + v * root[i] * e[i]
            out[i] = expected if v != f(0) else out[i]
        for i in range(size):
            slope[i] += t[i] * e[i] * least[i]
        if large == 0:
            for i in range(size):
                v, x = spreads[i], min(max(t[i], -_FARTHEST), _FARTHEST)
                share = v * least[i]
                series = _six_terms(x, least[i], share)
                spreads[i] = v * (slope[i] * slope[i] + e[i] * e[i] * share * series)
        else:
            for i in range(size):
                v, x = spreads[i], min(max(t[i], -_FARTHEST), _FARTHEST)
                share = v * least[i]
                series = _ten_terms(x, least[i], share)
                spreads[i] = v * (slope[i] * slope[i] + e[i] * e[i] * share * series)
