"""Standard Normal noise that is never stored: ξ_i is a function of a seed and of i, and is computed where it is needed.

torch fills a CPU tensor with Normal numbers on one core, and a random weight then takes two more sweeps over memory.
Here noise, product and sum take one sweep on every core, and the backward pass computes the same noise once more.

The kernels in `leanbayes._ops.normal_kernels` are compiled at the first use and cached on disk. Without numba,
`leanbayes._ops.normal_numpy` gives the same numbers.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from leanbayes._ops import compiled, normal_numpy
from leanbayes._ops.normal_numpy import STEP
from leanbayes._ops.threads import share_out

__all__ = [
    "draw",
    "fill",
    "has_kernel",
    "in_memory_order",
    "normal_and_gamma",
    "pull_back",
    "scale",
    "seed_of",
    "shift",
    "spread",
]

_LARGE = 2**17  # numbers from which a kernel is worth its call
_PIECE = 2**17  # numbers that a thread takes at a time, a multiple of the block of the kernels; no result depends on it


def seed_of(generator: torch.Generator | None) -> int:
    """Draw a seed for the kernels from a generator, or from the global random state of torch."""
    return int(torch.randint(2**63 - 1, (), generator=generator))


def has_kernel(tensor: Tensor, size: int, least: int = _LARGE) -> bool:
    """Return whether a kernel can replace torch for a tensor of ``size`` numbers.

    The tensor must be large, plain, float32 and in main memory, and nothing may trace or transform the call.
    """
    if tensor.device.type != "cpu" or tensor.dtype != torch.float32 or size < least:
        return False
    if type(tensor) not in (Tensor, nn.Parameter) or torch.compiler.is_compiling():
        return False
    return torch._C._functorch.peek_interpreter_stack() is None


def fill(out: Tensor, seed: int) -> Tensor:
    """Write ξ into ``out``, a contiguous float32 tensor in main memory."""
    _run("fill", seed, [out])
    return out


def shift(mean: Tensor, spread: Tensor, seed: int, out: Tensor | None = None) -> Tensor:
    """Return μ + σξ."""
    out = torch.empty_like(mean) if out is None else out
    _run("shift", seed, [out, mean, spread])
    return out


def scale(values: Tensor, seed: int) -> Tensor:
    """Return v·ξ."""
    out = torch.empty_like(values)
    _run("scale", seed, [out, values])
    return out


def spread(mean: Tensor, variance: Tensor, seed: int, slope: bool = True, reuse: bool = False) -> tuple[Tensor, Tensor]:
    """Return μ + √v·ξ and its slope ξ/2√v.

    Args:
        mean: the means μ.
        variance: the variances v, in the same order in memory.
        seed: the seed of the noise.
        slope: whether to compute the slope; without it the second result is empty.
        reuse: whether the results overwrite the memory of μ and v.
    """
    out = mean.detach() if reuse else torch.empty_like(mean)
    slopes = out.new_empty(0) if not slope else variance.detach() if reuse else torch.empty_like(mean)
    _run("spread", seed, [out, slopes, mean, variance])
    return out, slopes


def draw(mean: Tensor, rho: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return μ + σξ with σ = softplus(ρ), and from the same sweep (Σμ, Σμ², Σσ², Σ log σ) in float64."""
    out, sums = torch.empty_like(mean), np.zeros((-(-mean.numel() // _PIECE), 4))
    _run("draw", seed, [out, mean, rho], sums)
    return out, torch.from_numpy(sums.sum(0))


def normal_and_gamma(shape: Sequence[int], law: tuple[float, float, float, float], seed: int) -> tuple[Tensor, Tensor]:
    """Return az and bz² + cγ with z ~ N(0, 1) and γ ~ Gamma(k), for a law (k, a, b, c) with k > 1."""
    linear, square = torch.empty(tuple(shape)), torch.empty(tuple(shape))
    _run("normal_and_gamma", seed, [linear, square], [np.asarray(law, np.float64)] * -(-linear.numel() // _PIECE))
    return linear, square


def pull_back(gradient: Tensor, of_sums: Tensor, mean: Tensor, rho: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return the gradients of `draw` for μ and ρ."""
    of_mean, of_rho = torch.empty_like(mean), torch.empty_like(rho)
    rows = np.broadcast_to(np.asarray(of_sums), (-(-mean.numel() // _PIECE), 4))
    _run("pull_back", seed, [of_mean, of_rho, gradient, mean, rho], rows)
    return of_mean, of_rho


def in_memory_order(tensor: Tensor) -> Tensor:
    """Return a view whose axis of the largest stride comes first, so that a tensor without gaps is contiguous.

    >>> in_memory_order(torch.zeros(4, 3, 2).permute(2, 0, 1)).shape
    torch.Size([4, 3, 2])
    """
    if tensor.is_contiguous():
        return tensor
    strides = tensor.stride()
    return tensor.permute(sorted(range(tensor.dim()), key=lambda axis: -strides[axis]))


def _run(name: str, seed: int, tensors: list[Tensor], rows: Any = None) -> None:
    """Call a kernel on pieces of the tensors, in threads; each piece gets its own row, if there are rows."""
    kernel = getattr(_kernels(), name)
    arrays = [np.asarray(in_memory_order(tensor.detach())).reshape(-1) for tensor in tensors]

    def piece(number: int) -> None:
        start = number * _PIECE
        first = np.uint64((seed + start // 2 * STEP) % 2**64)
        pieces = [array[start : start + _PIECE] for array in arrays]
        with np.errstate(all="ignore"):  # numpy would warn of infinities that torch passes on
            kernel(first, *pieces, *(() if rows is None else (rows[number],)))

    share_out(piece, range(-(-arrays[0].size // _PIECE)))


def _kernels() -> ModuleType:
    """Return the compiled kernels, or the same functions in numpy where numba is missing."""
    if not compiled.available():
        return normal_numpy
    from leanbayes._ops import normal_kernels  # numba takes half a second, which small models need not wait for

    return normal_kernels
