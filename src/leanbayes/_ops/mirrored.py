"""A weight draw and its mirror image, by a compiled kernel on large float32 tensors in main memory."""

import numpy as np
import torch
from torch import Tensor

from leanbayes._ops import compiled
from leanbayes._ops.normal import has_kernel
from leanbayes._ops.normal_numpy import STEP
from leanbayes._ops.threads import share_out

__all__ = ["kernel_fits", "pair", "pair_of_seed", "pull_back", "pull_back_of_seed"]

_PIECE = 2**17  # numbers that a thread takes at a time; no result depends on it


def kernel_fits(*tensors: Tensor, least: int | None = None) -> bool:
    """Return whether the kernels can use these tensors: large, contiguous, float32, and numba is there.

    Args:
        tensors: the tensors.
        least: how many numbers each of them must have; by default so many that the call pays for one tensor.
    """
    size = {} if least is None else {"least": least}
    if not all(has_kernel(tensor, tensor.numel(), **size) and tensor.is_contiguous() for tensor in tensors):
        return False
    return compiled.available()


def pair(mean: Tensor, rho: Tensor, noise: Tensor, out: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """Return μ + σξ and μ − σξ with σ = softplus(ρ), written to ``out`` if it is given."""
    first, second = (torch.empty_like(mean), torch.empty_like(mean)) if out is None else out
    _run("pair", first, second, mean, rho, noise)
    return first, second


def pull_back(of_first: Tensor, of_second: Tensor, rho: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of `pair` for μ and ρ."""
    of_mean, of_rho = torch.empty_like(rho), torch.empty_like(rho)
    _run("pull_back", of_mean, of_rho, of_first, of_second, rho, noise)
    return of_mean, of_rho


def pair_of_seed(mean: Tensor, rho: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return what `pair` does for the noise that `leanbayes._ops.normal.fill` makes of a seed, without storing it."""
    first, second = torch.empty_like(mean), torch.empty_like(mean)
    _run("pair_of_seed", first, second, mean, rho, seed=seed)
    return first, second


def pull_back_of_seed(of_first: Tensor, of_second: Tensor, rho: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return the gradients of `pair_of_seed` for μ and ρ, which take the places of those of the pair in memory."""
    _run("pull_back_of_seed", of_first, of_second, rho, seed=seed)
    return of_first, of_second


def _run(name: str, *tensors: Tensor, seed: int | None = None) -> None:
    from leanbayes._ops import mirrored_kernels  # numba takes half a second, which small models need not wait for

    kernel = getattr(mirrored_kernels, name)
    arrays = [np.asarray(tensor.detach()).reshape(-1) for tensor in tensors]

    def piece(start: int) -> None:
        first = () if seed is None else (np.uint64((seed + start // 2 * STEP) % 2**64),)
        kernel(*first, *(array[start : start + _PIECE] for array in arrays))

    share_out(piece, range(0, arrays[0].size, _PIECE))
