"""The softmax over many draws or points of logits: expectations for Gaussian logits, and the NLL of the mean of draws.

For large float32 tensors on the CPU a kernel goes over memory once, whatever the number of points is; elsewhere torch
takes as many sweeps as there are points, or one over all points together where these are few.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes._ops import compiled
from leanbayes._ops.normal import has_kernel
from leanbayes._ops.threads import share_out

__all__ = ["mixture_nll", "softmax_moments"]

_TOGETHER = 2**18  # numbers, up to which all points are computed in one call
_LEAST = 2**17  # numbers times points, from which the kernel is worth its call
_PIECE = 2**12  # positions that a thread takes at least


def softmax_moments(mean: Tensor, variance: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean softmax and its mean entropy in nats over the logits μ + √v·ξ, with the classes along axis 1.

    Args:
        mean: the means μ, of shape (N, C, ...).
        variance: the variances v.
        noise: the points ξ, of shape (points, C), which are equally likely.

    >>> points = torch.tensor([[1.0, 1.0, -1.0], [-1.0, -1.0, 1.0]])
    >>> [part.shape for part in softmax_moments(torch.zeros(2, 3), torch.ones(2, 3), points)]
    [torch.Size([2, 3]), torch.Size([2])]
    """
    if torch.compiler.is_compiling():  # before any question about sizes, which would fix them in the graph
        return _together(mean, variance, noise)
    size = len(noise) * mean.numel()
    plain = not (torch.is_grad_enabled() and (mean.requires_grad or variance.requires_grad))
    if plain and all(has_kernel(part, size, _LEAST) for part in (mean, variance)) and compiled.available():
        return _swept(mean, variance, noise)
    if size <= _TOGETHER:
        return _together(mean, variance, noise)
    deviation = variance.clamp_min(0).sqrt()
    probabilities, entropies = torch.zeros_like(mean), torch.zeros_like(mean.select(1, 0))
    for row in noise.to(mean):
        log_p = F.log_softmax(torch.addcmul(mean, deviation, _along(row, mean)), dim=1)
        p = log_p.exp()
        probabilities, entropies = probabilities + p, entropies - (p * log_p).sum(1)
    return probabilities / len(noise), entropies / len(noise)


def _together(mean: Tensor, variance: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    points = noise.to(mean).view(len(noise), 1, -1, *[1] * (mean.dim() - 2))
    log_p = F.log_softmax(mean + variance.clamp_min(0).sqrt() * points, dim=2)
    p = log_p.exp()
    return p.mean(0), -(p * log_p).sum(2).mean(0)


def _along(row: Tensor, mean: Tensor) -> Tensor:
    return row.view(-1, *[1] * (mean.dim() - 2))


def _swept(mean: Tensor, variance: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Call the kernel on runs of examples and positions, in threads."""
    from leanbayes._ops.softmax_kernels import (
        moments,
    )  # numba takes half a second, which small models need not wait for

    shape = mean.shape
    flat = [part.detach().reshape(*shape[:2], -1) for part in (mean, variance)]
    probabilities, entropies = torch.empty_like(flat[0]), flat[0].new_empty(shape[0], flat[0].shape[2])
    arrays = [np.asarray(part) for part in (*flat, probabilities)]
    points, rows = np.ascontiguousarray(np.asarray(noise), np.float32), np.asarray(entropies)
    positions = rows.shape[1]
    step = max(_PIECE, -(-positions // (4 * torch.get_num_threads()))) if positions > _PIECE else positions
    examples = max(1, _PIECE // max(positions, 1))
    starts = [(n, p) for n in range(0, shape[0], examples) for p in range(0, positions, step)]

    def work(start: tuple[int, int]) -> None:
        some, run = slice(start[0], start[0] + examples), slice(start[1], start[1] + step)
        m, v, p = (array[some, :, run] for array in arrays)
        moments(m, v, points, p, rows[some, run])

    share_out(work, starts)
    return probabilities.view(shape), entropies.view(shape[0], *shape[2:])


def mixture_nll(logits: Tensor, targets: Tensor, coldness: float) -> float | None:
    """Return −Σ log mean p(target) over the targets, for draws (draws, targets, C) of finite logits times a coldness.

    It is summed in float64 from terms in float32. The result is None for tensors that the kernel does not take.
    """
    if not has_kernel(logits, logits.numel(), _LEAST) or not compiled.available():
        return None
    from leanbayes._ops.softmax_kernels import mixture_nll as kernel

    rows, classes = np.asarray(logits.detach()), np.asarray(targets.long())
    step = max(_PIECE, -(-rows.shape[1] // (4 * torch.get_num_threads())))
    sums: dict[int, float] = {}

    def work(start: int) -> None:
        sums[start] = kernel(rows[:, start : start + step], classes[start : start + step], coldness)

    starts = range(0, rows.shape[1], step)
    share_out(work, starts)
    return sum(sums[start] for start in starts)  # always in the same order
