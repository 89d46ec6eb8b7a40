"""A natural-gradient step of IVON in one sweep over memory, in loops that the compiler turns into vector instructions.

Each loop touches few arrays: with more, the compiler cannot tell that they do not overlap, and vectorises none.
"""

from typing import Any

import numpy as np
from numpy import float32 as f

from leanbayes._ops.normal_kernels import _exp, _kernel, _log, _softplus, _store

__all__ = ["step", "step_of_scales", "step_with_adam"]

_BLOCK = 512
_TINY = f(np.finfo(np.float32).tiny)


@_kernel
def _one_minus_exp(x: Any) -> Any:
    """Return 1 − e^−x for a positive x, by its series where the difference would lose digits."""
    series = f(1) - x * (f(1 / 2) - x * (f(1 / 6) - x * (f(1 / 24) - x * (f(1 / 120) - x * f(1 / 720)))))
    return x * series if x < f(0.25) else f(1) - _exp(max(-x, f(-87)))


@_kernel
def _new_curvature(h: Any, rho: Any, of_rho: Any, count: Any, numbers: Any, scales: Any, slopes: Any, new: Any) -> None:
    """Write the new curvature h to ``new``, and h + δ to ``scales``."""
    decay, least, forget = f(numbers[1]), f(numbers[2]), f(numbers[3])
    _softplus(rho, count, scales, slopes)
    for i in range(count):
        new[i] = of_rho[i] / max(scales[i], _TINY) / max(slopes[i], _TINY)
    for i in range(count):
        change = forget * (new[i] - h[i])
        new[i] = h[i] + (change + f(0.5) * change * change / max(h[i] + decay, least))
    for i in range(count):
        scales[i] = max(new[i] + decay, least)


@_kernel
def _raw_scales(scales: Any, count: Any, size: Any, slopes: Any) -> None:
    """Write the raw scales of σ = 1/√(λ(h + δ)) to ``slopes``; ``scales`` holds h + δ before and σ after."""
    for i in range(count):
        scales[i] = f(1) / np.sqrt(size * scales[i])
    for i in range(count):
        slopes[i] = _one_minus_exp(scales[i])
    for i in range(count):
        slopes[i] = scales[i] + _log(slopes[i])


@_kernel
def step_of_scales(curvature: Any, rho: Any, rho_gradient: Any, numbers: Any) -> None:
    """Update curvature and raw scales in place, as `step` does."""
    scales, slopes, new = np.empty(_BLOCK, f), np.empty(_BLOCK, f), np.empty(_BLOCK, f)
    for block in range(0, rho.size, _BLOCK):
        count = min(_BLOCK, rho.size - block)
        end = block + count
        old = curvature[block:end]
        _new_curvature(old, rho[block:end], rho_gradient[block:end], count, numbers, scales, slopes, new)
        _store(new, count, curvature, block)
        _raw_scales(scales, count, f(numbers[0]), slopes)
        _store(slopes, count, rho, block)


@_kernel
def step(curvature: Any, rho: Any, rho_gradient: Any, mean: Any, gradient: Any, momentum: Any, numbers: Any) -> None:
    """Update curvature, raw scales, means and momenta in place; `leanbayes.optim.sweeps` has the same in torch.

    ``numbers`` holds λ, δ, the least h + δ, 1 − β₂, 1 − β₁, 1/(1 − β₁ᵗ), the mean of the prior, h₀ + δ, the largest
    step and α.
    """
    decay, fresh, corrected, centre = f(numbers[1]), f(numbers[4]), f(numbers[5]), f(numbers[6])
    factor, most, rate = f(numbers[7]), f(numbers[8]), f(numbers[9])
    scales, slopes, new = np.empty(_BLOCK, f), np.empty(_BLOCK, f), np.empty(_BLOCK, f)
    for block in range(0, rho.size, _BLOCK):
        count = min(_BLOCK, rho.size - block)
        end = block + count
        before = curvature[block:end]
        _new_curvature(before, rho[block:end], rho_gradient[block:end], count, numbers, scales, slopes, new)
        _store(new, count, curvature, block)
        g, old = gradient[block:end], momentum[block:end]
        for i in range(count):
            new[i] = old[i] + fresh * (g[i] - old[i])
        _store(new, count, momentum, block)
        m = mean[block:end]
        for i in range(count):
            direction = factor * (corrected * new[i] + decay * (m[i] - centre)) / scales[i]
            new[i] = m[i] - rate * min(max(direction, -most), most)
        _store(new, count, mean, block)
        _raw_scales(scales, count, f(numbers[0]), slopes)
        _store(slopes, count, rho, block)


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
    scales, slopes, new = np.empty(_BLOCK, f), np.empty(_BLOCK, f), np.empty(_BLOCK, f)
    for block in range(0, rho.size, _BLOCK):
        count = min(_BLOCK, rho.size - block)
        end = block + count
        before = curvature[block:end]
        _new_curvature(before, rho[block:end], rho_gradient[block:end], count, numbers, scales, slopes, new)
        _store(new, count, curvature, block)
        _raw_scales(scales, count, f(numbers[0]), slopes)
        _store(slopes, count, rho, block)
        g, m = gradient[block:end], mean[block:end]
        for i in range(count):
            slopes[i] = g[i] + decay * (m[i] - centre)
        one = first[block:end]
        for i in range(count):
            new[i] = one[i] + fresh * (slopes[i] - one[i])
        _store(new, count, first, block)
        two = second[block:end]
        for i in range(count):
            scales[i] = two[i] + fresh_square * (slopes[i] * slopes[i] - two[i])
        _store(scales, count, second, block)
        for i in range(count):
            new[i] = m[i] - rate * new[i] / (np.sqrt(scales[i]) * correction + epsilon)
        _store(new, count, mean, block)
        if average.size:
            middle = average[block:end]
            for i in range(count):
                slopes[i] = middle[i] + share * (new[i] - middle[i])
            _store(slopes, count, average, block)
