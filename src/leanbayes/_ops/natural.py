"""One natural-gradient step of IVON on float32 tensors in main memory, by compiled kernels."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from leanbayes._ops import compiled
from leanbayes._ops.normal import has_kernel
from leanbayes._ops.threads import share_out

__all__ = ["kernel_fits", "natural_step", "steps_with_adam", "worth_kernel"]

_PIECE = 2**17  # numbers that a thread takes at a time; no result depends on it
_WORTH = 2**14  # numbers of all tensors from which one kernel for the whole step is worth loading numba


def kernel_fits(row: Sequence[Tensor], least: int | None = None) -> bool:
    """Return whether the kernels can update these tensors: contiguous, float32, and numba is there.

    Args:
        row: the tensors.
        least: how many numbers each of them must have; by default so many that the call pays for one tensor.
    """
    size = {} if least is None else {"least": least}
    if not all(has_kernel(tensor.detach(), tensor.numel(), **size) and tensor.is_contiguous() for tensor in row):
        return False
    return compiled.available()


def worth_kernel(count: int) -> bool:
    """Return whether tensors of so many numbers together are worth a kernel that updates all of them."""
    return count >= _WORTH


def natural_step(row: Sequence[Tensor], numbers: Sequence[float]) -> None:
    """Update curvature, raw scales, their gradient, means, their gradient and momentum, which are the row, in place.

    Args:
        row: the six tensors, of which the two gradients stay as they are, or only the first three.
        numbers: what `leanbayes._ops.natural_kernels.step` calls so.
    """
    from leanbayes._ops import natural_kernels  # numba takes half a second, which small models need not wait for

    update = natural_kernels.step if len(row) == 6 else natural_kernels.step_of_scales
    arrays = [np.asarray(tensor.detach()).reshape(-1) for tensor in row]
    settings = np.asarray(numbers, np.float64)

    def piece(start: int) -> None:
        update(*(array[start : start + _PIECE] for array in arrays), settings)

    share_out(piece, range(0, arrays[0].size, _PIECE))


def steps_with_adam(rows: Sequence[tuple[Sequence[Tensor], Sequence[float]]]) -> None:
    """Update scales by their curvature and means by Adam, for many tensors in one sweep over each.

    Args:
        rows: for each random tensor the curvature, the raw scales, their gradient, the means, their gradient, the two
            running means of Adam, and the average or an empty tensor; and what
            `leanbayes._ops.natural_kernels.step_with_adam` calls numbers.
    """
    from leanbayes._ops.natural_kernels import step_with_adam

    shares: list[list[tuple[Any, ...]]] = [[]]
    size = 0
    for tensors, numbers in rows:
        arrays = [np.asarray(tensor.detach()).reshape(-1) for tensor in tensors]
        settings = np.asarray(numbers, np.float64)
        for start in range(0, arrays[0].size, _PIECE):
            if size + min(arrays[0].size - start, _PIECE) > _PIECE:
                shares.append([])
                size = 0
            shares[-1].append((*(array[start : start + _PIECE] for array in arrays), settings))
            size += shares[-1][-1][0].size

    def work(share: list[tuple[Any, ...]]) -> None:
        for arguments in share:
            step_with_adam(*arguments)

    share_out(work, shares)
