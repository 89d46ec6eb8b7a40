"""A natural-gradient step of IVON in one sweep over memory, in loops that the compiler turns into vector instructions.

Each loop touches few arrays: with more, the compiler cannot tell that they do not overlap, and vectorises none.
"""

from typing import Any

import numpy as np
from numpy import float32 as f

from leanbayes._ops.normal_kernels import _exp, _kernel, _log, _softplus

__all__ = ["step"]

_BLOCK = 512
_TINY = f(np.finfo(np.float32).tiny)


@_kernel
def _one_minus_exp(x: Any) -> Any:
    """Return 1 − e^−x for a positive x, by its series where the difference would lose digits."""
    series = f(1) - x * (f(1 / 2) - x * (f(1 / 6) - x * (f(1 / 24) - x * (f(1 / 120) - x * f(1 / 720)))))
    return x * series if x < f(0.25) else f(1) - _exp(max(-x, f(-87)))


@_kernel
def step(curvature: Any, rho: Any, rho_gradient: Any, mean: Any, gradient: Any, momentum: Any, numbers: Any) -> None:
    """Update curvature, raw scales, means and momenta in place; `leanbayes.optim.sweeps` has the same in torch.

    ``numbers`` holds λ, δ, the least h + δ, 1 − β₂, 1 − β₁, 1/(1 − β₁ᵗ), the mean of the prior, h₀ + δ, the largest
    step and α.
    """
    size, decay, least, forget = f(numbers[0]), f(numbers[1]), f(numbers[2]), f(numbers[3])
    fresh, corrected, centre, factor = f(numbers[4]), f(numbers[5]), f(numbers[6]), f(numbers[7])
    most, rate = f(numbers[8]), f(numbers[9])
    scales, slopes, new = np.empty(_BLOCK, f), np.empty(_BLOCK, f), np.empty(_BLOCK, f)
    for block in range(0, rho.size, _BLOCK):
        count = min(_BLOCK, rho.size - block)
        end = block + count
        _softplus(rho[block:end], count, scales, slopes)
        of_rho, h = rho_gradient[block:end], curvature[block:end]
        for i in range(count):
            new[i] = of_rho[i] / max(scales[i], _TINY) / max(slopes[i], _TINY)
        for i in range(count):
            change = forget * (new[i] - h[i])
            new[i] = h[i] + (change + f(0.5) * change * change / max(h[i] + decay, least))
        curvature[block:end] = new[:count]
        for i in range(count):
            scales[i] = max(new[i] + decay, least)  # h + δ
        g, old = gradient[block:end], momentum[block:end]
        for i in range(count):
            new[i] = old[i] + fresh * (g[i] - old[i])
        momentum[block:end] = new[:count]
        m = mean[block:end]
        for i in range(count):
            direction = factor * (corrected * new[i] + decay * (m[i] - centre)) / scales[i]
            new[i] = m[i] - rate * min(max(direction, -most), most)
        mean[block:end] = new[:count]
        for i in range(count):
            scales[i] = f(1) / np.sqrt(size * scales[i])
        for i in range(count):
            slopes[i] = _one_minus_exp(scales[i])
        for i in range(count):
            slopes[i] = scales[i] + _log(slopes[i])
        rho[block:end] = slopes[:count]
