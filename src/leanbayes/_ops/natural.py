"""One natural-gradient step of IVON on float32 tensors in main memory, by compiled kernels."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leanbayes._ops import compiled
from leanbayes._ops.normal import has_kernel
from leanbayes._ops.threads import share_out

__all__ = [
    "Kept", "all_finite", "flat_array", "kernel_fits", "natural_step", "plain_call", "steps_with_adam", "worth_kernel",
]  # fmt: skip

_PIECE = 2**17  # numbers that a thread takes at a time; no result depends on it
_WORTH = 2**14  # numbers of all tensors from which one kernel for the whole step is worth loading numba
_MANY = 500  # steps after which the kernel is worth loading for fewer numbers, too: it saves calls of operations


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


def worth_kernel(count: int, taken: int = 0) -> bool:
    """Return whether a kernel should update tensors of so many numbers together, after so many steps of a training.

    The answer depends on nothing else, so a training that goes on from a checkpoint takes the same kernels.
    """
    return count >= _WORTH or taken >= _MANY


def plain_call() -> bool:
    """Return whether nothing traces or transforms the present call."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is None


class Kept:
    """Tensors that stay from step to step, as flat arrays for the kernels, as long as they stay where they are."""

    def __init__(self) -> None:
        self._tensors: tuple[Tensor, ...] = ()
        self._places: tuple[int, ...] = ()
        self._arrays: list[Any] | None = None

    def arrays(self, tensors: tuple[Tensor, ...]) -> list[Any] | None:
        """Return the arrays, or None if a kernel does not fit all of the tensors."""
        same = len(tensors) == len(self._tensors) and all(map(_is, tensors, self._tensors))
        places = tuple([tensor.data_ptr() for tensor in tensors]) if same else ()
        if not same or places != self._places:
            fits = kernel_fits(tensors, least=1)
            self._tensors, self._places = tensors, tuple([tensor.data_ptr() for tensor in tensors]) if fits else ()
            self._arrays = [np.asarray(tensor.detach()).reshape(-1) for tensor in tensors] if fits else None
        return self._arrays if compiled.available() else None


def _is(one: Any, other: Any) -> bool:
    return one is other


def flat_array(tensor: Tensor, count: int) -> Any | None:
    """Return a gradient as a flat array, or None if the kernels cannot use it as one of so many numbers."""
    plain = type(tensor) is Tensor and tensor.dtype is torch.float32 and tensor.layout is torch.strided
    if not plain or not tensor.is_cpu or not tensor.is_contiguous() or tensor.numel() != count:
        return None
    return np.asarray(tensor.detach()).reshape(-1)


def all_finite(arrays: Sequence[Any]) -> bool:
    """Return whether the numbers of each array have a finite sum; if not, one of them may be infinite or NaN."""
    from leanbayes._ops.natural_kernels import total

    return all(math.isfinite(total(array)) for array in arrays)


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


def steps_with_adam(rows: Sequence[tuple[Sequence[Any], Any]]) -> None:
    """Update scales by their curvature and means by Adam, for many tensors in one sweep over each.

    Args:
        rows: for each random tensor the flat arrays of the curvature, the raw scales, their gradient, the means, their
            gradient, the two running means of Adam, and the average or an empty array; and what
            `leanbayes._ops.natural_kernels.step_with_adam` calls numbers.
    """
    from leanbayes._ops.natural_kernels import step_with_adam

    shares: list[list[tuple[Any, ...]]] = [[]]
    size = 0
    for arrays, numbers in rows:
        count = arrays[0].size
        for start in range(0, count, _PIECE):
            if size + min(count - start, _PIECE) > _PIECE:
                shares.append([])
                size = 0
            pieces = arrays if count <= _PIECE else [array[start : start + _PIECE] for array in arrays]
            shares[-1].append((*pieces, numbers))
            size += pieces[0].size

    def work(share: list[tuple[Any, ...]]) -> None:
        for arguments in share:
            step_with_adam(*arguments)

    share_out(work, shares)
