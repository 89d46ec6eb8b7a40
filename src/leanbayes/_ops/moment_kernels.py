"""Moments of a rectified Gaussian, and sums over positions, in loops that the compiler turns into vector instructions.

With a = |μ|/σ, everything follows from the density φ(a) and Mills' ratio M(a) = Φ(−a)/φ(a) = √(π/2)·erfcx(a/√2). For
the ratio there is one formula with a relative error below 1.2e-7 (Press et al., Numerical Recipes, erfcc).
"""

from typing import Any

import numpy as np
from numpy import float32 as f

from leanbayes._ops.normal_kernels import _exp, _kernel, _sums

__all__ = [
    "add_turned",
    "affine",
    "beside",
    "norm_tokens",
    "pool_largest",
    "pull_back_affine",
    "pull_back_rectify",
    "pull_back_square",
    "rectify",
    "rectify_and_sum",
    "resample",
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
def _width(channels: Any) -> Any:
    """Return how many numbers of whole positions make a block: the sums of a block lie side by side until the end."""
    return max(1, _BLOCK // channels) * channels


@_kernel
def _fold(wide: Any, sums: Any) -> None:
    """Add the sums (kinds, positions of a block · channels) to those of each channel, (kinds, channels)."""
    channels = sums.shape[1]
    for kind in range(sums.shape[0]):
        for start in range(0, wide.shape[1], channels):
            for c in range(channels):
                sums[kind, c] += wide[kind, start + c]


@_kernel
def rectify_and_sum(mean: Any, variance: Any, out_mean: Any, out_variance: Any, sums: Any) -> None:
    """Do as `rectify` for arrays (examples, positions, channels), and sum E, E², Var and Cov(z, relu(z)) by channel."""
    count, positions, channels = mean.shape
    length, width = positions * channels, _width(channels)
    wide = np.empty((4, width), f)
    plain, squares, spread, covariance = wide[0], wide[1], wide[2], wide[3]
    for n in range(count):
        zs, us = mean[n].reshape(-1), variance[n].reshape(-1)
        xs, vs = out_mean[n].reshape(-1), out_variance[n].reshape(-1)
        wide[:] = f(0)
        for start in range(0, length, width):
            size = min(width, length - start)
            z, x, v = zs[start : start + size], xs[start : start + size], vs[start : start + size]
            rectify(z, us[start : start + size], x, v)
            for i in range(size):
                plain[i] += x[i]
            for i in range(size):
                squares[i] += x[i] * x[i]
            for i in range(size):
                spread[i] += v[i]
            for i in range(size):  # σ² P(z > 0), from E z·relu(z) = E relu(z)²
                covariance[i] += v[i] + x[i] * (x[i] - z[i])
        _fold(wide, sums[n])


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
    """Compute x² + σ² for arrays (examples, positions, channels), and the sums by channel of x, x² and σ²."""
    count, positions, channels = x.shape
    length, width = positions * channels, _width(channels)
    wide = np.empty((3, width), f)
    plain, squares, spread = wide[0], wide[1], wide[2]
    for n in range(count):
        xs, vs, outs = x[n].reshape(-1), variance[n].reshape(-1), out[n].reshape(-1)
        wide[:] = f(0)
        for start in range(0, length, width):
            size = min(width, length - start)
            a, v, o = xs[start : start + size], vs[start : start + size], outs[start : start + size]
            for i in range(size):
                o[i] = a[i] * a[i]
            for i in range(size):
                plain[i] += a[i]
            for i in range(size):
                squares[i] += o[i]
            for i in range(size):
                spread[i] += v[i]
            for i in range(size):
                o[i] += v[i]
        _fold(wide, sums[n])


@_kernel
def pull_back_square(x: Any, of_second: Any, of_passed: Any, of_x: Any, of_variance: Any, of_sums: Any) -> None:
    """Compute the gradients of `square` for x and σ²; ``of_passed`` is what σ² gets from elsewhere."""
    count, positions, channels = x.shape
    for n in range(count):
        plain, squares, spread = of_sums[n, 0], of_sums[n, 1], of_sums[n, 2]
        for p in range(positions):
            xs, seconds, passed, xs_out, vs_out = (
                x[n, p],
                of_second[n, p],
                of_passed[n, p],
                of_x[n, p],
                of_variance[n, p],
            )
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
    """Compute A·σ² + B·(x − m)² + D with numbers for each channel, and sum σ² and (x − m)² by channel."""
    count, positions, channels = x.shape
    length, width = positions * channels, _width(channels)
    wide, vectors = np.empty((2, width), f), np.empty((4, width), f)
    for i in range(width):
        c = i % channels
        vectors[0, i], vectors[1, i], vectors[2, i], vectors[3, i] = centre[c], on_variance[c], on_square[c], added[c]
    middle, first, second, third = vectors[0], vectors[1], vectors[2], vectors[3]
    spread, squares, away = wide[0], wide[1], np.empty(width, f)
    for n in range(count):
        xs, vs, outs = x[n].reshape(-1), variance[n].reshape(-1), out[n].reshape(-1)
        wide[:] = f(0)
        for start in range(0, length, width):
            size = min(width, length - start)
            a, v, o = xs[start : start + size], vs[start : start + size], outs[start : start + size]
            for i in range(size):
                d = a[i] - middle[i]
                away[i] = d * d
            for i in range(size):
                squares[i] += away[i]
            for i in range(size):
                spread[i] += v[i]
            for i in range(size):
                o[i] = second[i] * away[i] + third[i] + first[i] * v[i]
        _fold(wide, sums[n])


@_kernel
def pull_back_affine(
    x: Any, variance: Any, gradient: Any, centre: Any, on_variance: Any, on_square: Any,
    of_x: Any, of_variance: Any, of_sums: Any, sums: Any,
) -> None:  # fmt: skip
    """Compute the gradients of `affine` for x and σ², and for each channel Σ gσ², Σ g(x − m)², Σ g and Σ ∂/∂x."""
    count, positions, channels = x.shape
    away = np.empty(channels, f)
    for n in range(count):
        spread, squares = of_sums[n, 0], of_sums[n, 1]
        first, second, third, fourth = sums[n, 0], sums[n, 1], sums[n, 2], sums[n, 3]
        for p in range(positions):
            xs, vs, gs, xs_out, vs_out = x[n, p], variance[n, p], gradient[n, p], of_x[n, p], of_variance[n, p]
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
            for c in range(channels):
                first[c] += gs[c] * vs[c]
            for c in range(channels):
                second[c] += gs[c] * away[c] * away[c]
            for c in range(channels):
                third[c] += gs[c]
            for c in range(channels):
                fourth[c] += xs_out[c]


@_sums
def _moments_of_row(x: Any, variance: Any) -> Any:
    """Return the mean of x, the mean of (x − mean)², and the mean of σ²."""
    total, spread, squares = f(0), f(0), f(0)
    for c in range(x.size):
        total += x[c]
    centre = total / f(x.size)
    for c in range(x.size):
        spread += variance[c]
    for c in range(x.size):
        away = x[c] - centre
        squares += away * away
    return centre, squares / f(x.size), spread / f(x.size)


@_kernel
def norm_tokens(
    x: Any, variance: Any, gain: Any, on_square: Any, added: Any, floor: Any, normed: Any, out: Any, sums: Any
) -> None:
    """Apply a layer norm with the expected statistics to arrays (examples, tokens, channels).

    ``normed`` holds the means after the norm by the statistics of the means, and is corrected. The variance after it is
    g²u + B(u + (x − m)²e²) + D with u = e²σ², the expected scale e, and the vectors g, B and D; u and (x − m)²e² are
    summed by channel.
    """
    count, tokens, channels = x.shape
    share = f(1) - f(1) / f(channels)
    for n in range(count):
        passed, squares = sums[n, 0], sums[n, 1]
        for p in range(tokens):
            xs, vs, means, outs = x[n, p], variance[n, p], normed[n, p], out[n, p]
            centre, spread, noise = _moments_of_row(xs, vs)
            plain = f(1) / np.sqrt(spread + floor[0])
            scale = f(1) / np.sqrt(spread + noise * share + floor[0])
            change, square = scale - plain, scale * scale
            for c in range(channels):
                away = xs[c] - centre
                means[c] += away * change * gain[c]
                far, own = away * away * square, square * vs[c]
                passed[c] += own
                squares[c] += far
                outs[c] = gain[c] * gain[c] * own + on_square[c] * (own + far) + added[c]


@_kernel
def beside(x: Any, variance: Any, out: Any, sums: Any) -> None:
    """Write σ² and x² side by side, (examples, positions, 2·channels), and sum x, x² and σ² by channel."""
    count, positions, channels = x.shape
    length, width = positions * channels, _width(channels)
    wide = np.empty((3, width), f)
    plain, squares, spread = wide[0], wide[1], wide[2]
    for n in range(count):
        xs, vs = x[n].reshape(-1), variance[n].reshape(-1)
        wide[:] = f(0)
        for start in range(0, length, width):
            size = min(width, length - start)
            a, v = xs[start : start + size], vs[start : start + size]
            for i in range(size):
                plain[i] += a[i]
            for i in range(size):
                squares[i] += a[i] * a[i]
            for i in range(size):
                spread[i] += v[i]
        for p in range(positions):
            row, means, spreads = out[n, p], x[n, p], variance[n, p]
            for c in range(channels):
                row[c] = spreads[c]
            for c in range(channels):
                row[channels + c] = means[c] * means[c]
        _fold(wide, sums[n])


@_kernel
def pool_largest(x: Any, variance: Any, geometry: Any, out_mean: Any, out_variance: Any, sums: Any) -> None:
    """Do as `_pool_largest` for every example."""
    for n in range(x.shape[0]):
        _pool_largest(x[n], variance[n], geometry, out_mean[n], out_variance[n], sums[n])


@_kernel
def _pool_largest(x: Any, variance: Any, geometry: Any, out_mean: Any, out_variance: Any, sums: Any) -> None:
    """Take mean and variance of the entry with the largest mean in each window, as torch does, where NaN is largest.

    The geometry gives, for rows and for columns, the size, the size of the output, the window, the stride, the padding
    and the dilation. The means, their squares and the variances are summed for each channel.
    """
    channels = x.shape[1]
    height, out_height, rows, row_step, row_pad, row_gap = geometry[:6]
    width, out_width, columns, column_step, column_pad, column_gap = geometry[6:]
    plain, squares, spread = sums[0], sums[1], sums[2]
    for i in range(out_height):
        for j in range(out_width):
            ms, vs, first = out_mean[i * out_width + j], out_variance[i * out_width + j], True
            for a in range(rows):
                row = i * row_step - row_pad + a * row_gap
                if row < 0 or row >= height:
                    continue
                for b in range(columns):
                    column = j * column_step - column_pad + b * column_gap
                    if column < 0 or column >= width:
                        continue
                    xs, us = x[row * width + column], variance[row * width + column]
                    if first:
                        first = False
                        for c in range(channels):
                            ms[c] = xs[c]
                        for c in range(channels):
                            vs[c] = us[c]
                    else:
                        for c in range(channels):
                            larger = (xs[c] > ms[c]) | (xs[c] != xs[c])
                            vs[c] = us[c] if larger else vs[c]
                            ms[c] = xs[c] if larger else ms[c]
            for c in range(channels):
                plain[c] += ms[c]
            for c in range(channels):
                squares[c] += ms[c] * ms[c]
            for c in range(channels):
                spread[c] += vs[c]


@_kernel
def resample(variance: Any, starts: Any, row_weights: Any, column_weights: Any, rho: Any, out: Any, sums: Any) -> None:
    """Do as `_resample` for every example."""
    for n in range(variance.shape[0]):
        _resample(variance[n], starts, row_weights, column_weights, rho[n], out[n], sums[n])


@_kernel
def _resample(variance: Any, starts: Any, row_weights: Any, column_weights: Any, rho: Any, out: Any, sums: Any) -> None:
    """Compute ρ(Σ aσ)² + (1 − ρ)Σ a²σ² for y = Σ a x, where a is a product of a weight for the row and the column.

    ``starts`` holds the first row of each output row and then the first column of each output column; the weights of
    the rows and columns from there on follow in ``row_weights`` and ``column_weights``. For each channel, the common
    parts and all variances are summed.
    """
    channels = variance.shape[1]
    out_height, rows = row_weights.shape
    out_width, columns = column_weights.shape
    width = starts[-1]
    together, total = sums[0], sums[1]
    root = np.empty(variance.shape, f)
    for p in range(variance.shape[0]):
        vs, roots = variance[p], root[p]
        for c in range(channels):
            roots[c] = np.sqrt(max(vs[c], f(0)))
    line, common = np.empty(channels, f), np.empty(channels, f)
    for i in range(out_height):
        for j in range(out_width):
            for c in range(channels):
                line[c] = f(0)
            for c in range(channels):
                common[c] = f(0)
            for a in range(rows):
                for b in range(columns):
                    weight = row_weights[i, a] * column_weights[j, b]
                    if weight != f(0):
                        p = (starts[i] + a) * width + starts[out_height + j] + b
                        vs, roots, square = variance[p], root[p], weight * weight
                        for c in range(channels):
                            line[c] += square * vs[c]
                        for c in range(channels):
                            common[c] += weight * roots[c]
            outs = out[i * out_width + j]
            for c in range(channels):
                common[c] = rho[c] * common[c] * common[c]
            for c in range(channels):
                outs[c] = common[c] + (f(1) - rho[c]) * line[c]
            for c in range(channels):
                together[c] += common[c]
            for c in range(channels):
                total[c] += outs[c]


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
