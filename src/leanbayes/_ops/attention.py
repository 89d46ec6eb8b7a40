"""The variance of attention, softmax(q kᵀ s) v, whose queries, keys and values are random, in few products.

The scores have the variance Σ q²σ_k² + σ_q²(k² + σ_k²), which is one product of twice the length. To first order the
weights p of the softmax have the variance τ² that `leanbayes.propagate.moments.rules.softmax` states. The noise of the
values, of which all tokens share the fraction ρ, adds Σ p²(1 − ρ)σ_v² + τ²(v² + σ_v²) + (Σ p√(ρσ_v²))²: the first two
are again one product.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from leanbayes._ops.low_rank import root
from leanbayes._ops.moments import fits, sweep_rows

__all__ = ["attention_variance"]

_TOGETHER = 2**18  # scores that are computed at a time
_Moments = tuple[Tensor, Tensor]


def attention_variance(
    query: _Moments, key: _Moments, value: _Moments, rho: Tensor, scale: float
) -> tuple[Tensor, Tensor] | None:
    """Return the variance of attention, and the part of it that all tokens of the values share.

    None for tensors that the kernel does not take, and while gradients are recorded.

    Args:
        query: mean and variance, of shape (..., tokens, features).
        key: the same for the keys.
        value: the same for the values.
        rho: the fraction ρ of the variance of the values, of length 1 along the tokens.
        scale: the factor s of the scores.
    """
    tensors = (*query, *key, *value)
    q, k, v = query[0], key[0], value[0]
    scores = q.shape[:-1].numel() * k.shape[-2]
    if torch.is_grad_enabled() or not fits(scores, *tensors):
        return None
    if q.shape[:-2] != k.shape[:-2] or k.shape[:-1] != v.shape[:-1] or not len(q):
        return None
    variance, together = v.new_empty(*q.shape[:-1], v.shape[-1]), v.new_empty(*q.shape[:-1], v.shape[-1])
    rho = rho.expand(*v.shape[:-2], 1, v.shape[-1])
    step = max(1, _TOGETHER * len(q) // scores)
    for start in range(0, len(q), step):
        part = slice(start, start + step)
        _attend([tensor[part] for tensor in (*tensors, rho)], scale, variance[part], together[part])
    return variance, together


def _attend(tensors: Sequence[Tensor], scale: float, variance: Tensor, together: Tensor) -> None:
    """Do this for some examples, so few that everything stays in the cache."""
    q, q_variance, k, k_variance, v, v_variance, rho = tensors
    count, width = k.shape[-2], q.shape[-1]
    left = q.new_empty(*q.shape[:-1], 2 * width)
    torch.mul(q, q, out=left[..., :width])
    left[..., width:] = q_variance
    transposed = k.mT.contiguous()
    right = k.new_empty(*k.shape[:-2], 2 * width, count)
    upper, lower = right.split(width, -2)
    upper.copy_(k_variance.mT)
    torch.addcmul(upper, transposed, transposed, out=lower)
    weights, both = q @ transposed, q.new_empty(*q.shape[:-1], 2 * count)
    sweep_rows("softmax_spread", [weights, left @ right, both], [scale], home="attention_kernels")
    noise = v.new_empty(*v.shape[:-2], 2 * count, v.shape[-1])
    upper, lower = noise.split(count, -2)
    torch.addcmul(v_variance, v, v, out=lower)
    shared = rho * v_variance
    torch.sub(v_variance, shared, out=upper)
    torch.square(weights @ root(shared), out=together)
    torch.add(both @ noise, together, out=variance)
