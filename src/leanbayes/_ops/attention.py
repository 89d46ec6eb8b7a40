"""The variance of attention, softmax(q kᵀ s) v, whose queries, keys and values are random, in few products.

The scores have the variance Σ q²σ_k² + σ_q²(k² + σ_k²), which is one product of twice the length. To first order the
weights p of the softmax have the variance τ² that `leanbayes.propagate.moments.rules.softmax` states. The noise of the
values, of which all tokens share the fraction ρ, adds Σ p²(1 − ρ)σ_v² + τ²(v² + σ_v²) + (Σ p√(ρσ_v²))²: the first two
are again one product.
"""

import torch
from torch import Tensor

from leanbayes._ops.low_rank import root
from leanbayes._ops.moments import fit, sweep_rows

__all__ = ["attention_variance"]

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
    (q, q_variance), (k, k_variance), (v, v_variance) = query, key, value
    count, width = k.shape[-2], q.shape[-1]
    if torch.is_grad_enabled() or q.shape[:-2] != k.shape[:-2] or k.shape[:-1] != v.shape[:-1]:
        return None
    weights = q @ k.mT
    if not fit(weights):
        return None
    left = q.new_empty(*q.shape[:-1], 2 * width)
    torch.mul(q, q, out=left[..., :width])
    left[..., width:] = q_variance
    right = k.new_empty(*k.shape[:-2], 2 * width, count)
    upper, lower = right.split(width, -2)
    upper.copy_(k_variance.mT)
    torch.mul(k.mT, k.mT, out=lower)
    lower += upper
    both = q.new_empty(*q.shape[:-1], 2 * count)
    sweep_rows("softmax_spread", [weights, left @ right, both], [scale], home="attention_kernels")
    noise = v.new_empty(*v.shape[:-2], 2 * count, v.shape[-1])
    upper, lower = noise.split(count, -2)
    torch.mul(v, v, out=lower)
    lower += v_variance
    shared = rho * v_variance
    torch.sub(v_variance, shared, out=upper)
    together = (weights @ root(shared)).square()
    return (both @ noise).add_(together), together
