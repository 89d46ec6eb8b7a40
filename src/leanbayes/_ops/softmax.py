"""The softmax under uncertainty: expectations for Gaussian logits, and the NLL of the mean of draws.

The probability of class c is the logistic function of z_c − log S_c, where S_c sums e^z over the other classes. For
independent Gaussian logits, log S_c is nearly Gaussian (Lu et al. 2020 call this the mean-field approximation of
the Gaussian softmax integral): with the shares π_j of the other classes in S_c at the means, its mean is
log S_c + ½ Σ π_j(1 − π_j) v_j to second order, and its variance is Σ π_j² v_j to first order. One quadrature over a
single Gaussian for each class then gives probability and entropy, whatever the number of classes is.

For large float32 tensors on the CPU a kernel goes over memory once; elsewhere torch takes several sweeps.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes._ops import compiled
from leanbayes._ops.normal import has_kernel
from leanbayes._ops.threads import share_out

__all__ = ["mixture_nll", "softmax_moments"]

_LEAST = 2**14  # numbers from which the kernel of the moments is worth its call
_LEAST_OF_DRAWS = 2**17  # numbers from which the kernel of the mixture is worth its call
_PIECE = 2**12  # positions that a thread takes at least
_FEW = 256  # positions of an example, below which blocks of positions go over several examples
_FARTHEST = -40.0  # logits so far below the largest add nothing to sums, and their squares must not underflow

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(7)
_WEIGHTS = _WEIGHTS / math.sqrt(2 * math.pi)


def softmax_moments(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return E softmax(z) and the mean entropy of softmax(z) in nats for independent Gaussian logits z.

    For 3 or more classes the probabilities are within 1e-5 where all logits have the standard deviation 0.1, within
    3e-4 for 0.3, within 0.03 for 1 and within 0.15 for 2; the entropies are within twice that. Without variance both
    are as exact as the type allows. Probabilities are positive, however small, and add up to 1.

    Args:
        mean: the means of the logits, of shape (N, C, ...).
        variance: their variances.

    >>> [part.shape for part in softmax_moments(torch.zeros(2, 3), torch.ones(2, 3))]
    [torch.Size([2, 3]), torch.Size([2])]
    """
    if torch.compiler.is_compiling():  # before any question about sizes, which would fix them in the graph
        return _by_torch(mean, variance)
    plain = not (torch.is_grad_enabled() and (mean.requires_grad or variance.requires_grad))
    if plain and all(has_kernel(part, part.numel(), _LEAST) for part in (mean, variance)) and compiled.available():
        return _swept(mean, variance)
    return _by_torch(mean, variance)


def _by_torch(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    largest, place = mean.detach().max(1, keepdim=True)
    away = mean - largest
    share = away.clamp_min(_FARTHEST).exp()
    v = variance.clamp_min(0)
    top = torch.zeros_like(mean, dtype=torch.bool).scatter(1, place, torch.ones_like(place, dtype=torch.bool))

    def of_others(term: Tensor) -> Tensor:
        """Sum over the other classes; for the largest class not as a difference, which would lose all digits."""
        rest = term.masked_fill(top, 0)
        return torch.where(top, rest.sum(1, keepdim=True), term.sum(1, keepdim=True) - term)

    if mean.shape[1] == 1:  # no other class
        return torch.ones_like(mean) + 0 * (mean + variance), 0 * (mean + variance).select(1, 0)
    total = of_others(share)
    first, second = of_others(share * v) / total, of_others(share.square() * v) / total.square()
    centre = away - total.log() - 0.5 * (first - second)
    deviation = (v + second.clamp_min(0)).sqrt()
    probability, entropy = torch.zeros_like(mean), torch.zeros_like(mean)
    for node, weight in zip(_NODES.tolist(), _WEIGHTS.tolist(), strict=True):
        z = centre + node * deviation
        p = z.sigmoid()
        probability, entropy = probability + weight * p, entropy + weight * p * F.softplus(-z, threshold=60)
    whole = probability.sum(1, keepdim=True)
    exact = (whole - 1).abs() <= 8 * torch.finfo(whole.dtype).eps  # then the logarithm would be one of rounding alone
    mean_entropy = (entropy.sum(1, keepdim=True) + torch.where(exact, 0, whole * whole.log())) / whole
    return probability / whole, mean_entropy.clamp_min(0).squeeze(1)


def _swept(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Call the kernel on runs of examples and positions, in threads."""
    from leanbayes._ops.softmax_kernels import (
        moments,  # numba takes half a second, which small models need not wait for
    )

    shape, positions = mean.shape, math.prod(mean.shape[2:])
    given = [part.detach() for part in (mean, variance)]
    if positions < _FEW:  # the kernel takes positions in blocks, so here examples become positions
        flat = [part.movedim(1, 0).reshape(1, shape[1], -1).contiguous() for part in given]
    else:
        flat = [part.reshape(shape[0], shape[1], positions).contiguous() for part in given]
    probabilities, entropies = torch.empty_like(flat[0]), torch.empty_like(flat[0][:, 0])
    m, v, p, h = (np.asarray(part) for part in (*flat, probabilities, entropies))
    nodes = np.stack([_NODES, _WEIGHTS]).astype(np.float32)
    step = max(_PIECE, -(-h.shape[1] // (4 * torch.get_num_threads())))

    def work(start: tuple[int, int]) -> None:
        moments(m, v, nodes, p, h, start[0], start[1], min(start[1] + step, h.shape[1]))

    share_out(work, [(n, first) for n in range(h.shape[0]) for first in range(0, h.shape[1], step)])
    if positions < _FEW:
        rest = (shape[0], *shape[2:])
        return probabilities.view(shape[1], *rest).movedim(0, 1).contiguous(), entropies.view(rest)
    return probabilities.view(shape), entropies.view(shape[0], *shape[2:])


def mixture_nll(logits: Tensor, targets: Tensor, coldness: float) -> float | None:
    """Return −Σ log mean p(target) over the targets, for draws (draws, targets, C) of finite logits times a coldness.

    It is summed in float64 from terms in float32. The result is None for tensors that the kernel does not take.
    """
    if not has_kernel(logits, logits.numel(), _LEAST_OF_DRAWS) or not compiled.available():
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
