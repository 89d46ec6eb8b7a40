"""Attention: the scores, the softmax and the weighted sum of values, each by its own rule."""

import math
import types
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map

from leanbayes._ops.attention import attention_variance
from leanbayes._ops.safe_sqrt import SafeSqrt
from leanbayes.propagate.linear_ops import Operation
from leanbayes.propagate.moments.correlations import Correlations
from leanbayes.propagate.moments.kinds import RULES
from leanbayes.propagate.moments.tensor import MomentTensor, expected_of

__all__ = ["multi_head_attention_forward", "scaled_dot_product_attention"]

ASSUMES = "queries, keys and values independent of each other; softmax to first order"


@RULES.rule(F.scaled_dot_product_attention, exact=False, assumes=ASSUMES)
def scaled_dot_product_attention(
    operation: Operation,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> MomentTensor:
    """Compute the moments of softmax(q kᵀ s + mask) v."""
    arguments = (query, key, value, attn_mask)
    if attn_mask is None and not (is_causal or enable_gqa or dropout_p > 0):
        swept = _swept(operation, query, key, value, scale)
        if swept is not None:
            return swept
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        key, value = (torch.repeat_interleave(tensor, times, dim=-3) for tensor in (key, value))
    scores = torch.matmul(query, key.transpose(-2, -1)) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None:
        boolean = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(attn_mask.logical_not(), -math.inf) if boolean else scores + attn_mask
    weights = torch.softmax(scores, -1)
    if dropout_p > 0:
        weights = F.dropout(weights, dropout_p)
    attended = torch.matmul(weights, value)
    assert isinstance(attended, MomentTensor)
    if dropout_p > 0:
        return attended
    mean = operation(*map(expected_of, arguments), is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
    units = _units_of_values(value, attended.variance)
    return attended.like(mean, attended.variance, Correlations(attended.correlations.positions, None, units))


def _swept(operation: Operation, query: Any, key: Any, value: Any, scale: float | None) -> MomentTensor | None:
    """Do the same in few products; return None if these tensors have to take the usual way."""
    arguments = (query, key, value)
    if torch.is_grad_enabled() or torch.compiler.is_compiling():  # before any question about sizes, which a graph keeps
        return None
    if not all(isinstance(part, MomentTensor) and part.dim() > 2 for part in arguments):
        return None
    rho = value.correlations.positions
    if rho is None or value.dim() - 2 not in value.correlations.common_axes(value.shape):
        return None
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    q, k, v = ((part.expected, part.variance) for part in arguments)
    swept = attention_variance(q, k, v, rho, factor)
    if swept is None:
        return None
    variance, together = swept
    units = _units_of_values(value, variance)
    shared = Correlations.contracted(together, variance, (variance.dim() - 2,))
    result: MomentTensor = query.like(
        operation(*map(expected_of, arguments), scale=scale), variance, Correlations(shared.positions, None, units)
    )
    return result


def _units_of_values(value: Any, variance: Tensor) -> Tensor | None:
    """Return the loadings after attention: its weights sum to 1, so noise that all tokens share passes unchanged."""
    units = value.correlations.units if isinstance(value, MomentTensor) else None
    if units is None or units.shape[-2] != 1:
        return None
    before, after = value.variance.mean(-2, keepdim=True), variance.mean(-2, keepdim=True)
    loadings: Tensor = units * SafeSqrt.apply(before / torch.where(after > 0, after, 1)).clamp_max(1)
    return loadings


@RULES.rule(F.multi_head_attention_forward, exact=False, assumes=ASSUMES, composite=True)
def multi_head_attention_forward(operation: Operation, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG001
    """Run torch's own code, each of whose operations has a rule. It has the tokens first and the examples second."""
    moved = tree_map(lambda value: _with_examples(value, 1), (args, kwargs))
    return tree_map(lambda value: _with_examples(value, 0), _body(*moved[0], **moved[1]))


def _with_examples(value: Any, axis: int) -> Any:
    if not isinstance(value, MomentTensor):
        return value
    setting = replace(value.setting, examples=axis)
    return MomentTensor.of(value.expected, value.variance, value.correlations, setting).moved_from(value)


_source: Any = F.multi_head_attention_forward
_body = types.FunctionType(
    _source.__code__,
    {**_source.__globals__, "has_torch_function": lambda _: False},  # otherwise it would call this rule again
    _source.__name__,
    _source.__defaults__,
    _source.__closure__,
)
