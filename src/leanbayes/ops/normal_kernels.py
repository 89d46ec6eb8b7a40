"""Normal numbers from counters, in loops that the compiler turns into vector instructions.

A block of 512 numbers comes from 256 counters. SplitMix64 (Steele et al. 2014) makes 64 bits of each: 31 for a radius
√(−2 log u), 32 for an angle (Box and Muller 1958). Logarithm, sine and cosine are polynomials in float32. As u has
31 bits, |ξ| ends at 6.7.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy import float32 as f
from numpy import int32, uint32, uint64

__all__ = ["STEP", "fill", "scale", "shift"]

STEP = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio, between two counters
_STEP, _FIRST, _SECOND = uint64(STEP), uint64(0xBF58476D1CE4E5B9), uint64(0x94D049BB133111EB)
_PAIRS = 256
_BLOCK = 2 * _PAIRS
_LOG_2 = f(0.6931471805599453)
_TURN = f(2 * np.pi / 2**32)  # 2^32 make a full turn

_kernel: Any = njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract", "nsz", "arcp"})


@_kernel
def _normals(first: Any, cosines: Any, sines: Any) -> None:
    for i in range(_PAIRS):
        z = first + uint64(i) * _STEP
        z = (z ^ (z >> uint64(30))) * _FIRST
        z = (z ^ (z >> uint64(27))) * _SECOND
        z = z ^ (z >> uint64(31))
        uniform = (f(int32(z >> uint64(33))) + f(0.5)) * f(2.0**-31)
        bits = np.float32(uniform).view(np.int32)
        exponent = int32((bits - int32(0x3F3504F3)) >> int32(23))  # leaves a mantissa in [√½, √2)
        m = np.int32(bits - (exponent << int32(23))).view(np.float32) - f(1)
        t = m / (f(2) + m)  # log(1 + m) = 2 artanh(t)
        t2 = t * t
        series = f(1) + t2 * (f(1 / 3) + t2 * (f(1 / 5) + t2 * (f(1 / 7) + t2 * f(1 / 9))))
        radius = np.sqrt(f(-2) * (f(2) * t * series + f(exponent) * _LOG_2))
        angle = int32(uint32(z))
        quarter = int32((angle + int32(0x20000000)) >> int32(30))
        y = f(int32(angle - (quarter << int32(30)))) * _TURN  # in ±π/4
        y2 = y * y
        sine = y * (f(1) + y2 * (f(-1 / 6) + y2 * (f(1 / 120) + y2 * f(-1 / 5040))))
        cosine = f(1) + y2 * (f(-1 / 2) + y2 * (f(1 / 24) + y2 * (f(-1 / 720) + y2 * f(1 / 40320))))
        odd = (quarter & int32(1)) != 0
        a = sine if odd else cosine
        b = cosine if odd else sine
        cosines[i] = radius * (-a if ((quarter + int32(1)) & int32(2)) != 0 else a)
        sines[i] = radius * (-b if (quarter & int32(2)) != 0 else b)


@_kernel
def fill(first: Any, out: Any) -> None:
    """ξ."""
    noise = np.empty(_BLOCK, f)
    for block in range(0, out.size, _BLOCK):
        _normals(first + uint64(block // 2) * _STEP, noise[:_PAIRS], noise[_PAIRS:])
        for i in range(min(_BLOCK, out.size - block)):
            out[block + i] = noise[i]


@_kernel
def shift(first: Any, out: Any, mean: Any, spread: Any) -> None:
    """μ + σξ."""
    noise = np.empty(_BLOCK, f)
    for block in range(0, out.size, _BLOCK):
        _normals(first + uint64(block // 2) * _STEP, noise[:_PAIRS], noise[_PAIRS:])
        for i in range(min(_BLOCK, out.size - block)):
            out[block + i] = mean[block + i] + spread[block + i] * noise[i]


@_kernel
def scale(first: Any, out: Any, values: Any) -> None:
    """v·ξ."""
    noise = np.empty(_BLOCK, f)
    for block in range(0, out.size, _BLOCK):
        _normals(first + uint64(block // 2) * _STEP, noise[:_PAIRS], noise[_PAIRS:])
        for i in range(min(_BLOCK, out.size - block)):
            out[block + i] = values[block + i] * noise[i]
