"""Moments of a rectified Gaussian, and sums over positions, in loops that the compiler turns into vector instructions.

With a = |μ|/σ, everything follows from the density φ(a) and Mills' ratio M(a) = Φ(−a)/φ(a) = √(π/2)·erfcx(a/√2). For
the ratio there is one formula with a relative error below 1.2e-7 (Press et al., Numerical Recipes, erfcc).
"""

from typing import Any

import numpy as np
from numpy import float32 as f

from leanbayes._ops.normal_kernels import _exp, _kernel

__all__ = [
    "add_turned",
    "affine",
    "pull_back_affine",
    "pull_back_rectify",
    "pull_back_square",
    "rectify",
    "rectify_and_sum",
    "square",
    "turn",
]

_BLOCK = 512
_SQUARE = 16  # numbers of a cache line
_FARTHEST = f(12)  # standard deviations, beyond which a tail is 0 in float32
_DENSITY = f(0.3989422804014327)  # φ(0)
_ROOT_HALF = f(0.7071067811865476)
_ROOT_HALF_PI = f(1.2533141373155003)


@_kernel
def _tails(mean: Any, root: Any, size: Any, distance: Any, density: Any, mills: Any) -> None:
    """Compute a = |μ|/σ, φ(a) and Mills' ratio of a; if σ = 0, a counts as 0, and the caller multiplies by σ = 0."""
    for i in range(size):
        s = root[i]
        distance[i] = min(abs(mean[i]) / (s if s > f(0) else f(1e30)), _FARTHEST)
    for i in range(size):
        a = distance[i]
        density[i] = _DENSITY * _exp(f(-0.5) * a * a)
    for i in range(size):
        t = f(1) / (f(1) + f(0.5) * _ROOT_HALF * distance[i])
        p = f(-0.82215223) + t * f(0.17087277)
        p = f(-1.13520398) + t * (f(1.48851587) + t * p)
        p = f(-0.18628806) + t * (f(0.27886807) + t * p)
        p = f(1.00002368) + t * (f(0.37409196) + t * (f(0.09678418) + t * p))
        mills[i] = _ROOT_HALF_PI * t * _exp(min(f(-1.26551223) + t * p, f(0)))


@_kernel
def rectify(mean: Any, variance: Any, out_mean: Any, out_variance: Any) -> None:
    """Compute E = relu(μ) + σφG₁ and Var = σ²(rise + φG₂ − (φG₁)²) with G₁ = 1 − aM and G₂ = (1 + a²)M − a.

    As polynomials in t = 1/(1 + a/4), G₁ and G₂ have relative errors below 2e-7. As M = G₂ + aG₁, nothing cancels.
    """
    for i in range(mean.size):
        m, v = mean[i], max(variance[i], f(0))
        s = np.sqrt(v)
        a = min(abs(m) / (s if s > f(0) else f(1e30)), _FARTHEST)
        t = f(1) / (f(1) + f(0.25) * a)
        d = _DENSITY * _exp(f(-0.5) * a * a) * t * t
        p = f(-1.34516312) + t * (f(1.81451229) + t * (f(-1.02432075) + t * f(0.200164797)))
        p = f(0.235328775) + t * (f(-0.0774208349) + t * (f(1.0161624) + t * p))
        first = d * (f(0.0628683908) + t * (f(0.11786794) + t * p))
        q = f(-2.97188763) + t * (f(4.18272387) + t * (f(-2.58090516) + t * f(0.559189895)))
        q = f(0.280681374) + t * (f(-0.273745225) + t * (f(1.94348154) + t * q))
        second = d * t * (f(0.0318237702) + t * (f(0.0819518822) + t * q))
        rise = f(1) - f(2) * (second + a * first) if m > f(0) else f(0)
        out_mean[i] = max(m, f(0)) + s * first
        out_variance[i] = v * (rise + max(second - first * first, f(0)))


@_kernel
def rectify_and_sum(mean: Any, variance: Any, out_mean: Any, out_variance: Any, sums: Any) -> None:
    """Do as `rectify` for arrays (positions, channels), and sum E, E², Var and Cov(z, relu(z)) for each channel."""
    positions, channels = mean.shape
    plain, squares, spread, covariance = sums[0], sums[1], sums[2], sums[3]
    rows = max(1, _BLOCK // channels)
    for start in range(0, positions, rows):
        stop = min(start + rows, positions)
        first, last = start * channels, stop * channels
        rectify(
            mean.reshape(-1)[first:last],
            variance.reshape(-1)[first:last],
            out_mean.reshape(-1)[first:last],
            out_variance.reshape(-1)[first:last],
        )
        for p in range(start, stop):
            zs, xs, vs = mean[p], out_mean[p], out_variance[p]
            for c in range(channels):
                plain[c] += xs[c]
            for c in range(channels):
                squares[c] += xs[c] * xs[c]
            for c in range(channels):
                spread[c] += vs[c]
            for c in range(channels):  # σ² P(z > 0), from E z·relu(z) = E relu(z)²
                covariance[c] += vs[c] + xs[c] * (xs[c] - zs[c])


@_kernel
def pull_back_rectify(
    mean: Any, variance: Any, of_out_mean: Any, of_out_variance: Any, of_mean: Any, of_variance: Any
) -> None:
    """Pull gradients back by ∂E/∂μ = Φ, ∂E/∂σ² = φ/2σ, ∂Var/∂μ = 2E(1 − Φ) and ∂Var/∂σ² = Φ − Eφ/σ."""
    root, distance = np.empty(_BLOCK, f), np.empty(_BLOCK, f)
    density, mills = np.empty(_BLOCK, f), np.empty(_BLOCK, f)
    for block in range(0, mean.size, _BLOCK):
        size = min(_BLOCK, mean.size - block)
        ms, vs = mean[block : block + size], variance[block : block + size]
        first, second = of_out_mean[block : block + size], of_out_variance[block : block + size]
        for i in range(size):
            root[i] = np.sqrt(max(vs[i], f(0)))
        _tails(ms, root, size, distance, density, mills)
        for i in range(size):  # distance: first moment above 0
            a, d, m = distance[i], density[i], mills[i]
            distance[i] = d * max(f(1) - a * m, f(0))
            mills[i] = d * m
        for i in range(size):  # mills: Φ
            tail = mills[i] if root[i] > f(0) else f(0)
            mills[i] = f(1) - tail if ms[i] > f(0) else tail
        for i in range(size):  # distance: E
            distance[i] = max(ms[i], f(0)) + root[i] * distance[i]
        for i in range(size):  # density: φ/σ
            density[i] = density[i] / root[i] if root[i] > f(0) else f(0)
        for i in range(size):
            root[i] = f(2) * distance[i] * (f(1) - mills[i])
        for i in range(size):
            root[i] = mills[i] * first[i] + root[i] * second[i]
        of_mean[block : block + size] = root[:size]
        for i in range(size):
            distance[i] = mills[i] - distance[i] * density[i]
        for i in range(size):
            distance[i] = f(0.5) * density[i] * first[i] + distance[i] * second[i]
        of_variance[block : block + size] = distance[:size]


@_kernel
def square(x: Any, variance: Any, out: Any, sums: Any) -> None:
    """Compute x² + σ² for arrays (positions, channels), and the sums (3, channels) of x, x² and σ²."""
    channels = x.shape[1]
    for p in range(x.shape[0]):
        xs, vs, outs = x[p], variance[p], out[p]
        for c in range(channels):
            outs[c] = xs[c] * xs[c]
        plain, squares, spread = sums[0], sums[1], sums[2]
        for c in range(channels):
            plain[c] += xs[c]
        for c in range(channels):
            squares[c] += outs[c]
        for c in range(channels):
            spread[c] += vs[c]
        for c in range(channels):
            outs[c] += vs[c]


@_kernel
def pull_back_square(x: Any, of_second: Any, of_passed: Any, of_x: Any, of_variance: Any, of_sums: Any) -> None:
    """Compute the gradients of `square` for x and σ²; ``of_passed`` is what σ² gets from elsewhere."""
    channels = x.shape[1]
    for p in range(x.shape[0]):
        xs, seconds, passed, xs_out, vs_out = x[p], of_second[p], of_passed[p], of_x[p], of_variance[p]
        plain, squares, spread = of_sums[0], of_sums[1], of_sums[2]
        for c in range(channels):
            xs_out[c] = f(2) * xs[c] * (seconds[c] + squares[c])
        for c in range(channels):
            xs_out[c] += plain[c]
        for c in range(channels):
            vs_out[c] = seconds[c] + passed[c]
        for c in range(channels):
            vs_out[c] += spread[c]


@_kernel
def affine(
    x: Any, variance: Any, centre: Any, on_variance: Any, on_square: Any, added: Any, out: Any, sums: Any
) -> None:
    """Compute A·σ² + B·(x − m)² + D with numbers for each channel, and sum σ² and (x − m)² for each channel."""
    channels = x.shape[1]
    away = np.empty(channels, f)
    for p in range(x.shape[0]):
        xs, vs, outs, spread, squares = x[p], variance[p], out[p], sums[0], sums[1]
        for c in range(channels):
            away[c] = xs[c] - centre[c]
        for c in range(channels):
            away[c] *= away[c]
        for c in range(channels):
            squares[c] += away[c]
        for c in range(channels):
            spread[c] += vs[c]
        for c in range(channels):
            away[c] = on_square[c] * away[c] + added[c]
        for c in range(channels):
            outs[c] = away[c] + on_variance[c] * vs[c]


@_kernel
def pull_back_affine(
    x: Any, variance: Any, gradient: Any, centre: Any, on_variance: Any, on_square: Any,
    of_x: Any, of_variance: Any, of_sums: Any, sums: Any,
) -> None:  # fmt: skip
    """Compute the gradients of `affine` for x and σ², and for each channel Σ gσ², Σ g(x − m)², Σ g and Σ ∂/∂x."""
    channels = x.shape[1]
    away = np.empty(channels, f)
    for p in range(x.shape[0]):
        xs, vs, gs, xs_out, vs_out = x[p], variance[p], gradient[p], of_x[p], of_variance[p]
        spread, squares = of_sums[0], of_sums[1]
        for c in range(channels):
            away[c] = xs[c] - centre[c]
        for c in range(channels):
            vs_out[c] = on_variance[c] * gs[c]
        for c in range(channels):
            vs_out[c] += spread[c]
        for c in range(channels):
            xs_out[c] = on_square[c] * gs[c]
        for c in range(channels):
            xs_out[c] = f(2) * away[c] * (xs_out[c] + squares[c])
        first, second, third, fourth = sums[0], sums[1], sums[2], sums[3]
        for c in range(channels):
            first[c] += gs[c] * vs[c]
        for c in range(channels):
            second[c] += gs[c] * away[c] * away[c]
        for c in range(channels):
            third[c] += gs[c]
        for c in range(channels):
            fourth[c] += xs_out[c]


@_kernel
def turn(x: Any, out: Any) -> None:
    """Turn (batch, positions, channels) into (channels, positions, batch), in squares that stay in the cache."""
    batch, positions, channels = x.shape
    for p in range(positions):
        for first in range(0, batch, _SQUARE):
            last = min(first + _SQUARE, batch)
            for c in range(channels):
                for n in range(first, last):
                    out[c, p, n] = x[n, p, c]


@_kernel
def add_turned(value: Any, out: Any) -> None:
    """Add (channels, positions, batch) to (batch, positions, channels)."""
    batch, positions, channels = out.shape
    for p in range(positions):
        for first in range(0, channels, _SQUARE):
            last = min(first + _SQUARE, channels)
            for n in range(batch):
                for c in range(first, last):
                    out[n, p, c] += value[c, p, n]
