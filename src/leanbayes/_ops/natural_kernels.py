"""A natural-gradient step of IVON in one sweep over memory, in loops that the compiler turns into vector instructions.

Each loop touches few arrays: with more, the compiler cannot tell that they do not overlap, and vectorises none. Loops
write where the results belong. Copying a slice from a buffer would take as long as half of the arithmetic.
"""

from typing import Any

import numpy as np
from numpy import float32 as f

from leanbayes._ops.normal_kernels import _exp, _kernel, _log, _log_1p, _sums

__all__ = ["step", "step_of_scales", "step_with_adam", "total"]

_BLOCK = 512
_TINY = f(np.finfo(np.float32).tiny)


@_sums
def total(values: Any) -> Any:
    """Return the sum of the numbers, which is not finite if one of them is not."""
    result = f(0)
    for i in range(values.size):
        result += values[i]
    return result


@_kernel
def _one_minus_exp(x: Any) -> Any:
    """Return 1 − e^−x for a positive x, by its series where the difference would lose digits."""
    series = f(1) - x * (f(1 / 2) - x * (f(1 / 6) - x * (f(1 / 24) - x * (f(1 / 120) - x * f(1 / 720)))))
    return x * series if x < f(0.25) else f(1) - _exp(max(-x, f(-87)))


@_kernel
def _follow(h: Any, rho: Any, of_rho: Any, count: Any, numbers: Any, new: Any, precision: Any) -> None:
    """Update the curvature h by its estimate (∂loss/∂ρ)/(σ dσ/dρ), and write h + δ to ``precision``."""
    decay, least, forget = f(numbers[1]), f(numbers[2]), f(numbers[3])
    for i in range(count):
        raw = rho[i]
        e = _exp(max(-abs(raw), f(-87)))
        slope = (f(1) if raw > f(0) else e) / (f(1) + e)
        scale = max(raw, f(0)) + _log_1p(e)
        new[i] = of_rho[i] / max(scale, _TINY) / max(slope, _TINY)
    for i in range(count):
        old = h[i]
        change = forget * (new[i] - old)
        now = old + (change + f(0.5) * change * change / max(old + decay, least))
        h[i] = now
        precision[i] = max(now + decay, least)


@_kernel
def _raw_scales(precision: Any, count: Any, size: Any, rho: Any) -> None:
    """Write the raw scales ρ = σ + log(1 − e^−σ) of σ = 1/√p with p = λ(h + δ).

    The raw scale is log(e^σ − 1) = −½ log p + σ/2 + σ²/24 − σ⁴/2880 + σ⁶/181440 − …; below σ = ½ what is left out is
    less than 10⁻⁹.
    """
    smallest = precision[0]
    for i in range(count):
        smallest = min(smallest, precision[i])
    if size * smallest > f(4):
        for i in range(count):
            p = size * precision[i]
            scale = f(1) / np.sqrt(p)
            square = scale * scale
            series = square * (f(1 / 24) - square * (f(1 / 2880) - square * f(1 / 181440)))
            rho[i] = f(0.5) * scale + series - f(0.5) * _log(p)
    else:
        for i in range(count):
            scale = f(1) / np.sqrt(size * precision[i])
            rho[i] = scale + _log(_one_minus_exp(scale))


@_kernel
def step_of_scales(curvature: Any, rho: Any, rho_gradient: Any, numbers: Any) -> None:
    """Update curvature and raw scales in place, as `step` does."""
    new, precision = np.empty(_BLOCK, f), np.empty(_BLOCK, f)
    for block in range(0, rho.size, _BLOCK):
        count = min(_BLOCK, rho.size - block)
        end = block + count
        raw = rho[block:end]
        _follow(curvature[block:end], raw, rho_gradient[block:end], count, numbers, new, precision)
        _raw_scales(precision, count, f(numbers[0]), raw)


@_kernel
def step(curvature: Any, rho: Any, rho_gradient: Any, mean: Any, gradient: Any, momentum: Any, numbers: Any) -> None:
    """Update curvature, raw scales, means and momenta in place; `leanbayes.optim.sweeps` has the same in torch.

    ``numbers`` holds λ, δ, the least h + δ, 1 − β₂, 1 − β₁, 1/(1 − β₁ᵗ), the mean of the prior, h₀ + δ, the largest
    step and α.
    """
    decay, fresh, corrected, centre = f(numbers[1]), f(numbers[4]), f(numbers[5]), f(numbers[6])
    factor, most, rate = f(numbers[7]), f(numbers[8]), f(numbers[9])
    new, precision = np.empty(_BLOCK, f), np.empty(_BLOCK, f)
    for block in range(0, rho.size, _BLOCK):
        count = min(_BLOCK, rho.size - block)
        end = block + count
        raw = rho[block:end]
        _follow(curvature[block:end], raw, rho_gradient[block:end], count, numbers, new, precision)
        g, momenta, m = gradient[block:end], momentum[block:end], mean[block:end]
        for i in range(count):
            now = momenta[i] + fresh * (g[i] - momenta[i])
            momenta[i] = now
            new[i] = now
        for i in range(count):
            direction = factor * (corrected * new[i] + decay * (m[i] - centre)) / precision[i]
            m[i] = m[i] - rate * min(max(direction, -most), most)
        _raw_scales(precision, count, f(numbers[0]), raw)


@_kernel
def step_with_adam(
    curvature: Any, rho: Any, rho_gradient: Any, mean: Any, gradient: Any, first: Any, second: Any, average: Any,
    numbers: Any,
) -> None:  # fmt: skip
    """Update curvature and raw scales as `step` does, the means by Adam, and their average, all in place.

    ``numbers`` holds λ, δ, the least h + δ, 1 − β₂, the mean of the prior, the two of 1 − β of Adam, √(1 − β₂ᵗ), ε,
    α/(1 − β₁ᵗ), and the share of the new means in the average, which is empty where there is none.
    """
    decay, centre, fresh, fresh_square = f(numbers[1]), f(numbers[4]), f(numbers[5]), f(numbers[6])
    correction, epsilon, rate, share = f(1 / numbers[7]), f(numbers[8]), f(numbers[9]), f(numbers[10])
    new, precision = np.empty(_BLOCK, f), np.empty(_BLOCK, f)
    for block in range(0, rho.size, _BLOCK):
        count = min(_BLOCK, rho.size - block)
        end = block + count
        raw = rho[block:end]
        _follow(curvature[block:end], raw, rho_gradient[block:end], count, numbers, new, precision)
        _raw_scales(precision, count, f(numbers[0]), raw)
        g, m, one, two = gradient[block:end], mean[block:end], first[block:end], second[block:end]
        for i in range(count):
            new[i] = g[i] + decay * (m[i] - centre)
        for i in range(count):
            one[i] = one[i] + fresh * (new[i] - one[i])
        for i in range(count):
            two[i] = two[i] + fresh_square * (new[i] * new[i] - two[i])
        for i in range(count):
            m[i] = m[i] - rate * one[i] / (np.sqrt(two[i]) * correction + epsilon)
        if average.size:
            middle = average[block:end]
            for i in range(count):
                middle[i] = middle[i] + share * (m[i] - middle[i])
