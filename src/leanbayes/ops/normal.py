"""Standard Normal noise that is never stored: ξ_i is a function of a seed and of i, computed where it is needed.

torch fills a CPU tensor with Normal numbers on one core, and a random weight then takes two more sweeps over memory.
Here noise, product and sum are one sweep on every core, and the backward pass computes the same noise once more.

The kernels are in `leanbayes.ops.normal_kernels`, compiled at the first use and kept on disk.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import torch
from torch import Tensor

__all__ = ["fill", "scale", "shift"]

_PIECE = 2**17  # numbers that a thread takes at a time, a multiple of the kernels' block; no result depends on it


def fill(out: Tensor, seed: int) -> Tensor:
    """ξ into ``out``, a contiguous float32 tensor in main memory."""
    return _run("fill", seed, out)


def shift(mean: Tensor, spread: Tensor, seed: int, out: Tensor | None = None) -> Tensor:
    """μ + σξ."""
    return _run("shift", seed, torch.empty_like(mean) if out is None else out, mean, spread)


def scale(values: Tensor, seed: int) -> Tensor:
    """v·ξ."""
    return _run("scale", seed, torch.empty_like(values), values)


def _run(name: str, seed: int, out: Tensor, *inputs: Tensor) -> Tensor:
    from leanbayes.ops import normal_kernels  # numba takes half a second, which small models need not wait for

    kernel = getattr(normal_kernels, name)
    arrays = [np.asarray(tensor.detach()).reshape(-1) for tensor in (out, *inputs)]
    starts = range(0, out.numel(), _PIECE)

    def piece(start: int) -> None:
        first = np.uint64((seed + start // 2 * normal_kernels.STEP) % 2**64)
        kernel(first, *(array[start : start + _PIECE] for array in arrays))

    for _ in _threads(torch.get_num_threads()).map(piece, starts):
        pass
    return out


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="leanbayes-noise")
