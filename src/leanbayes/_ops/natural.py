"""One natural-gradient step of IVON on large float32 tensors in main memory, by a compiled kernel."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from leanbayes._ops import compiled
from leanbayes._ops.normal import has_kernel, share_out

__all__ = ["kernel_fits", "natural_step"]

_PIECE = 2**17  # numbers that a thread takes at a time; no result depends on it


def kernel_fits(row: Sequence[Tensor]) -> bool:
    """Return whether `natural_step` can update these tensors: large, contiguous, float32, and numba is there."""
    if not all(has_kernel(tensor.detach(), tensor.numel()) and tensor.is_contiguous() for tensor in row):
        return False
    return compiled.available()


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
