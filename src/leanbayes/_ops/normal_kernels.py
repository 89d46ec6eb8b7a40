"""Normal numbers from counters, in loops that the compiler turns into vector instructions.

A block of 512 numbers comes from 256 counters. SplitMix64 (Steele et al. 2014) makes 64 bits of each counter: 31 for a
radius √(−2 log u) and 32 for an angle (Box and Muller 1958). Logarithm, sine and cosine are polynomials in float32.
Because u has 31 bits, |ξ| is at most 6.7.
"""

from typing import Any

import numpy as np
from numpy import float32 as f
from numpy import int32, uint32, uint64

from leanbayes._ops.compiled import kernel
from leanbayes._ops.normal_numpy import STEP

__all__ = ["draw", "fill", "normal_and_gamma", "pull_back", "scale", "shift", "spread"]

_STEP, _FIRST, _SECOND = uint64(STEP), uint64(0xBF58476D1CE4E5B9), uint64(0x94D049BB133111EB)
_PAIRS = 256
_BLOCK = 2 * _PAIRS
_LOG_2 = f(0.6931471805599453)
_TURN = f(2 * np.pi / 2**32)  # 2^32 make a full turn

_FAST = {"contract", "nsz", "arcp"}
_kernel: Any = kernel(fastmath=_FAST)
_sums: Any = kernel(fastmath=_FAST | {"reassoc"})


@_kernel
def _log(x: Any) -> Any:
    """Return log x = log 2^e (1 + m) = e log 2 + 2 artanh(m/(2 + m)) for a positive x that is not subnormal."""
    bits = np.float32(x).view(np.int32)
    exponent = int32((bits - int32(0x3F3504F3)) >> int32(23))  # leaves a mantissa in [√½, √2)
    m = np.int32(bits - (exponent << int32(23))).view(np.float32) - f(1)
    t = m / (f(2) + m)
    t2 = t * t
    series = f(1) + t2 * (f(1 / 3) + t2 * (f(1 / 5) + t2 * (f(1 / 7) + t2 * f(1 / 9))))
    return f(2) * t * series + f(exponent) * _LOG_2


@_kernel
def _store(values: Any, size: Any, out: Any, start: Any) -> None:
    """Write the first ``size`` values to ``out`` from ``start`` on.

    An assignment to a slice says the same, but for its error about shapes numba compiles all that formats numbers and
    joins strings, which takes seconds.
    """
    for i in range(size):
        out[start + i] = values[i]


@_kernel
def _mix(z: Any) -> Any:
    z = (z ^ (z >> uint64(30))) * _FIRST
    z = (z ^ (z >> uint64(27))) * _SECOND
    return z ^ (z >> uint64(31))


@_kernel
def _normals(first: Any, cosines: Any, sines: Any) -> None:
    """Make a block, in three loops because numbers of 64 and of 32 bits do not share vectors well."""
    radii, angles = cosines, sines  # the bits of an angle lie in a float: a view of the array takes long to compile
    for i in range(_PAIRS):
        z = _mix(first + uint64(i) * _STEP)
        angles[i] = np.int32(int32(uint32(z))).view(np.float32)
        radii[i] = f(int32(z >> uint64(33)))
    for i in range(_PAIRS):
        radii[i] = np.sqrt(f(-2) * _log((radii[i] + f(0.5)) * f(2.0**-31)))
    for i in range(_PAIRS):
        angle = np.float32(angles[i]).view(np.int32)
        quarter = int32((angle + int32(0x20000000)) >> int32(30))
        y = f(int32(angle - (quarter << int32(30)))) * _TURN  # in ±π/4
        y2 = y * y
        sine = y * (f(1) + y2 * (f(-1 / 6) + y2 * (f(1 / 120) + y2 * f(-1 / 5040))))
        cosine = f(1) + y2 * (f(-1 / 2) + y2 * (f(1 / 24) + y2 * (f(-1 / 720) + y2 * f(1 / 40320))))
        odd = (quarter & int32(1)) != 0
        a = sine if odd else cosine
        b = cosine if odd else sine
        radius = radii[i]
        cosines[i] = radius * (-a if ((quarter + int32(1)) & int32(2)) != 0 else a)
        sines[i] = radius * (-b if (quarter & int32(2)) != 0 else b)


@_kernel
def fill(first: Any, out: Any) -> None:
    """Write ξ."""
    noise = np.empty(_BLOCK, f)
    for block in range(0, out.size, _BLOCK):
        _normals(first + uint64(block // 2) * _STEP, noise[:_PAIRS], noise[_PAIRS:])
        for i in range(min(_BLOCK, out.size - block)):
            out[block + i] = noise[i]


@_kernel
def shift(first: Any, out: Any, mean: Any, spread: Any) -> None:
    """Write μ + σξ."""
    noise = np.empty(_BLOCK, f)
    for block in range(0, out.size, _BLOCK):
        _normals(first + uint64(block // 2) * _STEP, noise[:_PAIRS], noise[_PAIRS:])
        for i in range(min(_BLOCK, out.size - block)):
            out[block + i] = mean[block + i] + spread[block + i] * noise[i]


@_kernel
def scale(first: Any, out: Any, values: Any) -> None:
    """Write v·ξ."""
    noise = np.empty(_BLOCK, f)
    for block in range(0, out.size, _BLOCK):
        _normals(first + uint64(block // 2) * _STEP, noise[:_PAIRS], noise[_PAIRS:])
        for i in range(min(_BLOCK, out.size - block)):
            out[block + i] = values[block + i] * noise[i]


@_kernel
def spread(first: Any, out: Any, slope: Any, mean: Any, variance: Any) -> None:
    """Write μ + √v·ξ and its slope ξ/2√v, which is 0 where v is 0.

    A variance that was rounded below zero counts as zero. The results may overwrite μ and v, because each block is read
    before it is written.
    """
    noise, root, half = np.empty(_BLOCK, f), np.empty(_BLOCK, f), np.empty(_BLOCK, f)
    for block in range(0, out.size, _BLOCK):
        size = min(_BLOCK, out.size - block)
        _normals(first + uint64(block // 2) * _STEP, noise[:_PAIRS], noise[_PAIRS:])
        means, variances = mean[block : block + size], variance[block : block + size]
        for i in range(size):
            root[i] = np.sqrt(max(variances[i], f(0)))
        if slope.size > 0:
            for i in range(size):
                half[i] = f(0.5) * noise[i] / root[i] if root[i] > f(0) else f(0)
            _store(half, size, slope, block)
        for i in range(size):
            noise[i] = means[i] + root[i] * noise[i]
        _store(noise, size, out, block)


@_kernel
def _exp(x: Any) -> Any:
    """Return e^x = 2^n e^r with |r| ≤ ½ log 2, for x from −87 to 0."""
    n = np.floor(x * f(1.4426950408889634) + f(0.5))
    r = (x - n * f(0.693359375)) + n * f(2.12194440e-4)  # log 2 in two parts
    series = f(1) + r * (f(1) + r * (f(1 / 2) + r * (f(1 / 6) + r * (f(1 / 24) + r * (f(1 / 120) + r * f(1 / 720))))))
    return series * np.int32((int32(n) + int32(127)) << int32(23)).view(np.float32)


@_kernel
def _log_1p(t: Any) -> Any:
    """Return log(1 + t) = 2 artanh(t/(2 + t)) for t from 0 to 1, accurate however small t is."""
    u = t / (f(2) + t)
    u2 = u * u
    high = f(1 / 9) + u2 * (f(1 / 11) + u2 * (f(1 / 13) + u2 * f(1 / 15)))
    return f(2) * u * (f(1) + u2 * (f(1 / 3) + u2 * (f(1 / 5) + u2 * (f(1 / 7) + u2 * high))))


@_kernel
def _softplus(rho: Any, size: Any, scales: Any, slopes: Any) -> None:
    """Write σ = log(1 + e^ρ) and dσ/dρ, the logistic function."""
    for i in range(size):
        raw = rho[i]
        e = _exp(max(-abs(raw), f(-87)))
        scales[i] = max(raw, f(0)) + _log_1p(e)
        slopes[i] = (f(1) if raw > f(0) else e) / (f(1) + e)


# Each loop below touches few arrays: with more, the compiler cannot tell that they do not overlap, and vectorises none.


@_sums
def draw(first: Any, out: Any, mean: Any, rho: Any, sums: Any) -> None:
    """Write μ + σξ with σ = softplus(ρ), and add Σμ, Σμ², Σσ², Σ log σ in float64."""
    noise, scales, slopes = np.empty(_BLOCK, f), np.empty(_BLOCK, f), np.empty(_BLOCK, f)
    for block in range(0, out.size, _BLOCK):
        size = min(_BLOCK, out.size - block)
        _normals(first + uint64(block // 2) * _STEP, noise[:_PAIRS], noise[_PAIRS:])
        raws, means = rho[block : block + size], mean[block : block + size]
        _softplus(raws, size, scales, slopes)
        for i in range(size):
            noise[i] = means[i] + scales[i] * noise[i]
        _store(noise, size, out, block)
        plain, square, variance, logarithm = 0.0, 0.0, 0.0, 0.0
        for i in range(size):
            m = np.float64(means[i])
            plain += m
            square += m * m
        for i in range(size):
            s = np.float64(scales[i])
            variance += s * s
        for i in range(size):
            logs = _log(scales[i])
            slopes[i] = raws[i] if raws[i] < f(-17) else logs  # below −17, σ = e^ρ to the last digit
        for i in range(size):
            logarithm += np.float64(slopes[i])
        sums[0] += plain
        sums[1] += square
        sums[2] += variance
        sums[3] += logarithm


@_kernel
def pull_back(first: Any, of_mean: Any, of_rho: Any, gradient: Any, mean: Any, rho: Any, of_sums: Any) -> None:
    """Write the gradients of `draw` for μ and ρ, from those of the weight and of the four sums."""
    noise, scales, slopes = np.empty(_BLOCK, f), np.empty(_BLOCK, f), np.empty(_BLOCK, f)
    plain, square, variance, logarithm = f(of_sums[0]), f(2 * of_sums[1]), f(2 * of_sums[2]), f(of_sums[3])
    for block in range(0, gradient.size, _BLOCK):
        size = min(_BLOCK, gradient.size - block)
        _normals(first + uint64(block // 2) * _STEP, noise[:_PAIRS], noise[_PAIRS:])
        _softplus(rho[block : block + size], size, scales, slopes)
        g, means = gradient[block : block + size], mean[block : block + size]
        for i in range(size):
            noise[i] = g[i] * noise[i]
        for i in range(size):
            scales[i] = variance * scales[i] + logarithm / scales[i]
        for i in range(size):
            scales[i] = (noise[i] + scales[i]) * slopes[i]
        _store(scales, size, of_rho, block)
        for i in range(size):
            noise[i] = g[i] + plain + square * means[i]
        _store(noise, size, of_mean, block)


@_kernel
def _gamma(counter: Any, shape: Any) -> Any:
    """Draw one number of Gamma(shape, 1), shape > 1, by rejection (Marsaglia and Tsang 2000), in float64."""
    d = shape - 1.0 / 3.0
    c = 1.0 / np.sqrt(9.0 * d)
    z = counter
    while True:
        z = _mix(z + _STEP)
        radius = np.sqrt(-2.0 * np.log((np.float64(z >> uint64(11)) + 0.5) * 2.0**-53))
        z = _mix(z + _STEP)
        x = radius * np.cos(2.0 * np.pi * np.float64(z >> uint64(11)) * 2.0**-53)
        z = _mix(z + _STEP)
        u = (np.float64(z >> uint64(11)) + 0.5) * 2.0**-53
        v = (1.0 + c * x) ** 3
        if v > 0.0 and np.log(u) < 0.5 * x * x + d * (1.0 - v + np.log(v)):
            return d * v


@_kernel
def _tested(x: Any, u: Any, shape: Any, counter: Any) -> Any:
    """Return the number that x stands for if u accepts it, and another draw otherwise."""
    d = shape - 1.0 / 3.0
    v = (1.0 + x / np.sqrt(9.0 * d)) ** 3
    if v > 0.0 and np.log(1.0 - u) < 0.5 * x * x + d * (1.0 - v + np.log(v)):
        return d * v
    return _gamma(counter, shape)


@_kernel
def normal_and_gamma(first: Any, linear: Any, square: Any, law: Any) -> None:
    """Write az and bz² + cγ with γ ~ Gamma(k), for a law (k, a, b, c) with k > 1.

    γ = d(1 + t)³ with d = k − ⅓ and t = x/√9d is refused where u < 1 − e^h (Marsaglia and Tsang 2000). Because −h is
    the integral of 3ds³/(1 + s) from 0 to t, it is at most ¾dt⁴/(1 − |t|). The first 16 bits of u, of which one counter
    gives four, therefore decide nearly always, and the other bits are made when they are needed. The counters of z, x,
    u and of second trials are a quarter of all counters apart.
    """
    shape, a, b, rate = law[0], f(law[1]), f(law[2]), f(law[3])
    d, c = f(shape - 1.0 / 3.0), f(1.0 / np.sqrt(9.0 * (shape - 1.0 / 3.0)))
    most = f(0.75 * 2.0**16 * (shape - 1.0 / 3.0))
    z, x, doubt, gamma = np.empty(_BLOCK, f), np.empty(_BLOCK, f), np.empty(_BLOCK, f), np.empty(_BLOCK, f)
    words = np.empty(_BLOCK // 4, uint64)
    leading = words.view(np.uint16)
    quarter = uint64(1) << uint64(62)
    for block in range(0, linear.size, _BLOCK):
        size = min(_BLOCK, linear.size - block)
        start = first + uint64(block // 2) * _STEP
        _normals(start, z[:_PAIRS], z[_PAIRS:])
        _normals(start + quarter * _STEP, x[:_PAIRS], x[_PAIRS:])
        counters = first + quarter * _STEP * uint64(2) + uint64(block) * _STEP
        for i in range(words.size):
            words[i] = _mix(counters + uint64(i) * _STEP)
        doubts = 0
        for i in range(_BLOCK):
            t = c * x[i]
            doubt[i] = most * t * t * t * t - f(leading[i]) * (f(1) - abs(t))
        for i in range(_BLOCK):
            doubts += doubt[i] > f(0)
        for i in range(_BLOCK):
            v = f(1) + c * x[i]
            gamma[i] = d * v * v * v
        for i in range(size if doubts else 0):
            if doubt[i] > f(0):
                more = _mix(counters + (quarter + uint64(i)) * _STEP)
                u = (np.float64(leading[i]) + np.float64(more >> uint64(11)) * 2.0**-53) * 2.0**-16
                gamma[i] = _tested(np.float64(x[i]), u, shape, more)
        for i in range(size):
            gamma[i] = b * z[i] * z[i] + rate * gamma[i]
        _store(gamma, size, square, block)
        for i in range(size):
            z[i] = a * z[i]
        _store(z, size, linear, block)
