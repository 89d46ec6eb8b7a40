"""The functions of `leanbayes._ops.normal_kernels` in numpy, for machines without numba.

Each function gives the numbers of the kernel of the same name up to rounding, so a seed means the same noise on every
machine. `leanbayes._ops.normal_kernels` explains the formulas.
"""

from typing import Any

import numpy as np
from numpy import float32 as f
from numpy import uint64

__all__ = ["STEP", "draw", "fill", "normal_and_gamma", "pull_back", "scale", "shift", "spread"]

STEP = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio, between two counters
_FIRST, _SECOND = uint64(0xBF58476D1CE4E5B9), uint64(0x94D049BB133111EB)
_PAIRS = 256
_BLOCK = 2 * _PAIRS
_CHUNK = 64 * _BLOCK  # numbers whose intermediate results stay in the second cache
_QUARTER = 1 << 62  # of all counters
_TURN = f(2 * np.pi / 2**32)  # 2^32 make a full turn


def _counters(first: Any, count: int, start: int = 0) -> Any:
    """Return the counters ``start`` to ``start + count`` after ``first``, modulo 2^64."""
    origin = uint64((int(first) + start * STEP) % 2**64)
    return origin + np.arange(count, dtype=uint64) * uint64(STEP)


def _mix(z: Any) -> Any:
    z = (z ^ (z >> uint64(30))) * _FIRST
    z = (z ^ (z >> uint64(27))) * _SECOND
    return z ^ (z >> uint64(31))


def _normals(first: Any, size: int, start: int = 0) -> Any:
    """Return the first ``size`` numbers of as many whole blocks as that takes."""
    noise = np.empty(size, f)
    for begin in range(0, size, _CHUNK):
        part = noise[begin : begin + _CHUNK]
        part[:] = _chunk(first, part.size, start + begin // 2)
    return noise


def _chunk(first: Any, size: int, start: int) -> Any:
    blocks = -(-size // _BLOCK)
    bits = _mix(_counters(first, blocks * _PAIRS, start))
    angles = bits.astype(np.uint32).view(np.int32)
    radii = (bits >> uint64(33)).astype(f)
    radii = np.sqrt(f(-2) * np.log((radii + f(0.5)) * f(2.0**-31)))
    quarter = (angles + np.int32(0x20000000)) >> np.int32(30)
    y = (angles - (quarter << np.int32(30))).astype(f) * _TURN  # in ±π/4
    sine, cosine, odd = np.sin(y), np.cos(y), (quarter & 1) != 0
    noise = np.empty((blocks, 2, _PAIRS), f)
    for axis, a, negative in (
        (0, np.where(odd, sine, cosine), ((quarter + 1) & 2) != 0),
        (1, np.where(odd, cosine, sine), (quarter & 2) != 0),
    ):
        noise[:, axis] = (radii * np.where(negative, -a, a)).reshape(blocks, _PAIRS)
    return noise.reshape(-1)[:size]


def fill(first: Any, out: Any) -> None:
    """Write ξ."""
    out[:] = _normals(first, out.size)


def shift(first: Any, out: Any, mean: Any, spread: Any) -> None:
    """Write μ + σξ."""
    out[:] = mean + spread * _normals(first, out.size)


def scale(first: Any, out: Any, values: Any) -> None:
    """Write v·ξ."""
    out[:] = values * _normals(first, out.size)


def spread(first: Any, out: Any, slope: Any, mean: Any, variance: Any) -> None:
    """Write μ + √v·ξ and its slope ξ/2√v, which is 0 where v is; the results may lie where μ and v do."""
    noise = _normals(first, out.size)
    root = np.sqrt(np.maximum(variance, f(0)))
    if slope.size > 0:
        random = root > 0
        slope[:] = np.where(random, f(0.5) * noise / np.where(random, root, f(1)), f(0))
    out[:] = mean + root * noise


def _softplus(rho: Any) -> tuple[Any, Any]:
    """Return σ = log(1 + e^ρ) and dσ/dρ, the logistic function."""
    e = np.exp(np.maximum(-np.abs(rho), f(-87)))
    return np.maximum(rho, f(0)) + np.log1p(e), np.where(rho > 0, f(1), e) / (f(1) + e)


def draw(first: Any, out: Any, mean: Any, rho: Any, sums: Any) -> None:
    """Write μ + σξ with σ = softplus(ρ), and add Σμ, Σμ², Σσ², Σ log σ in float64."""
    scales, _ = _softplus(rho)
    out[:] = mean + scales * _normals(first, out.size)
    means, wide = mean.astype(np.float64), scales.astype(np.float64)
    logarithms = np.where(rho < f(-17), rho, np.log(scales))  # below −17, σ = e^ρ to the last digit
    sums += (means.sum(), (means * means).sum(), (wide * wide).sum(), logarithms.sum(dtype=np.float64))


def pull_back(first: Any, of_mean: Any, of_rho: Any, gradient: Any, mean: Any, rho: Any, of_sums: Any) -> None:
    """Write the gradients of `draw` for μ and ρ, from those of the weight and of the four sums."""
    plain, square, variance, logarithm = f(of_sums[0]), f(2 * of_sums[1]), f(2 * of_sums[2]), f(of_sums[3])
    scales, slopes = _softplus(rho)
    of_scale = gradient * _normals(first, gradient.size) + (variance * scales + logarithm / scales)
    of_rho[:] = of_scale * slopes
    of_mean[:] = gradient + plain + square * mean


def _accepts(x: Any, log_u: Any, d: float) -> tuple[Any, Any]:
    """Return the result of Marsaglia and Tsang's test of a trial x, and the number d(1 + x/√9d)³ that it stands for."""
    v = (1.0 + x / np.sqrt(9.0 * d)) ** 3
    positive = v > 0.0
    safe = np.where(positive, v, 1.0)
    return positive & (log_u < 0.5 * x * x + d * (1.0 - safe + np.log(safe))), d * v


def _gamma(counters: Any, shape: float) -> Any:
    """Draw numbers of Gamma(shape, 1), shape > 1, by rejection in float64, each from its own counter."""
    out, waiting, z = np.empty(counters.size), np.arange(counters.size), counters
    while waiting.size:
        words = []
        for _ in range(3):
            z = _mix(z + uint64(STEP))
            words.append((z >> uint64(11)).astype(np.float64))
        radius = np.sqrt(-2.0 * np.log((words[0] + 0.5) * 2.0**-53))
        x = radius * np.cos(2.0 * np.pi * words[1] * 2.0**-53)
        accepted, values = _accepts(x, np.log((words[2] + 0.5) * 2.0**-53), shape - 1.0 / 3.0)
        out[waiting[accepted]] = values[accepted]
        waiting, z = waiting[~accepted], z[~accepted]
    return out


def normal_and_gamma(first: Any, linear: Any, square: Any, law: Any) -> None:
    """Write az and bz² + cγ with γ ~ Gamma(k), for a law (k, a, b, c) with k > 1."""
    size, shape = linear.size, float(law[0])
    a, b, rate = f(law[1]), f(law[2]), f(law[3])
    d, c = shape - 1.0 / 3.0, f(1.0 / np.sqrt(9.0 * (shape - 1.0 / 3.0)))
    z, x = _normals(first, size), _normals(first, size, _QUARTER)
    blocks = -(-size // _BLOCK)
    words = _counters(first, blocks * _BLOCK, 2 * _QUARTER).reshape(blocks, _BLOCK)[:, : _BLOCK // 4]
    leading = _mix(words).view(np.uint16).reshape(-1)[:size]
    t = c * x
    doubtful = f(0.75 * 2.0**16 * d) * t * t * t * t - leading.astype(f) * (f(1) - np.abs(t)) > 0
    gamma = f(d) * (f(1) + t) ** 3
    where = np.flatnonzero(doubtful)
    if where.size:
        more = _mix(_counters(first, size, 3 * _QUARTER)[where])
        u = (leading[where] + (more >> uint64(11)).astype(np.float64) * 2.0**-53) * 2.0**-16
        accepted, values = _accepts(x[where].astype(np.float64), np.log(1.0 - u), d)
        values[~accepted] = _gamma(more[~accepted], shape)
        gamma[where] = values
    square[:] = b * z * z + rate * gamma
    linear[:] = a * z
