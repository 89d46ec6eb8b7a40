"""Batch, layer, group, instance and root-mean-square norm. The statistics are those of the means, taken as numbers.

002 scales the variance of layer norm by the mean (eq. 14); it is the gain γ that scales it: (γ/√(Var + ε))²·σ².
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.propagate.linear_ops import Operation
from leanbayes.propagate.moments.shared import full_fraction, mix
from leanbayes.propagate.moments.tensor import RULES, MomentTensor, first_random, parts_of

__all__ = ["batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm"]

ASSUMES = "statistics do not move: those of the means"


@RULES.rule(F.batch_norm, exact=False, assumes=ASSUMES + "; exact in eval mode for independent inputs")
def batch_norm(
    operation: Operation,
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> MomentTensor:
    """Running statistics are updated by the means."""
    x, gain, offset = parts_of(input)[0], parts_of(weight)[0], parts_of(bias)[0]
    if training:
        axes = tuple(axis for axis in range(x.dim()) if axis != 1)
        variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    else:
        mean, variance = (_along(statistic, x, 1) for statistic in (running_mean, running_var))
    out = operation(x, running_mean, running_var, gain, offset, training, momentum, eps)
    return _normed(out, input, weight, bias, mean, (variance + eps).rsqrt(), 1)


@RULES.rule(F.layer_norm, torch.layer_norm, exact=False, assumes=ASSUMES)
def layer_norm(
    operation: Operation, input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> MomentTensor:
    """Over the last axes."""
    x, gain, offset = parts_of(input)[0], parts_of(weight)[0], parts_of(bias)[0]
    variance, mean = torch.var_mean(x, tuple(range(-len(normalized_shape), 0)), correction=0, keepdim=True)
    out = operation(x, normalized_shape, gain, offset, eps)
    return _normed(out, input, weight, bias, mean, (variance + eps).rsqrt(), None)


@RULES.rule(F.rms_norm, torch.rms_norm, exact=False, assumes=ASSUMES)
def rms_norm(
    operation: Operation, input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None
) -> MomentTensor:
    """x / √(mean x² + ε)."""
    x, gain = parts_of(input)[0], parts_of(weight)[0]
    square = x.square().mean(tuple(range(-len(normalized_shape), 0)), keepdim=True)
    scale = (square + (torch.finfo(x.dtype).eps if eps is None else eps)).rsqrt()
    return _normed(operation(x, normalized_shape, gain, eps), input, weight, None, torch.zeros_like(scale), scale, None)


@RULES.rule(F.group_norm, torch.group_norm, exact=False, assumes=ASSUMES)
def group_norm(
    operation: Operation, input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> MomentTensor:
    """Over the channels of a group and all positions."""
    x, gain, offset = parts_of(input)[0], parts_of(weight)[0], parts_of(bias)[0]
    grouped = x.reshape(x.shape[0], num_groups, -1)
    variance, mean = torch.var_mean(grouped, 2, correction=0, keepdim=True)
    each = x.shape[1] // num_groups
    shape = (x.shape[0], x.shape[1], *[1] * (x.dim() - 2))
    mean, scale = (s.expand(-1, -1, each).reshape(shape) for s in (mean, (variance + eps).rsqrt()))
    return _normed(operation(x, num_groups, gain, offset, eps), input, weight, bias, mean, scale, 1)


@RULES.rule(F.instance_norm, exact=False, assumes=ASSUMES)
def instance_norm(
    operation: Operation,
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> MomentTensor:
    """Over the positions of each channel of each example."""
    x, gain, offset = parts_of(input)[0], parts_of(weight)[0], parts_of(bias)[0]
    if use_input_stats:
        variance, mean = torch.var_mean(x, tuple(range(2, x.dim())), correction=0, keepdim=True)
    else:
        mean, variance = (_along(statistic, x, 1) for statistic in (running_mean, running_var))
    out = operation(x, running_mean, running_var, gain, offset, use_input_stats, momentum, eps)
    return _normed(out, input, weight, bias, mean, (variance + eps).rsqrt(), 1)


def _normed(
    out: Tensor, input: Any, weight: Any, bias: Any, mean: Tensor, scale: Tensor, axis: int | None
) -> MomentTensor:
    """Var y = γ²s²σ² + σ_γ² (x̂² + s²σ²) + σ_β², with s = 1/√(Var + ε) and x̂ = (x - mean)·s."""
    (x, x_variance, shared), (gain, gain_variance, _) = parts_of(input), parts_of(weight)
    offset_variance = parts_of(bias)[1]
    random = first_random(input, weight, bias)
    parts: list[tuple[Tensor, Tensor | None]] = []
    spread = None if x_variance is None else scale.square() * x_variance
    if spread is not None:
        parts.append((spread if gain is None else _along(gain, x, axis).square() * spread, shared))
    if gain_variance is not None:
        second = ((x - mean) * scale).square()
        factor = _along(gain_variance, x, axis)
        parts.append((factor * (second if spread is None else second + spread), _common(factor, x, random)))
    if offset_variance is not None:
        added = _along(offset_variance, x, axis)
        parts.append((added, _common(added, x, random)))
    variance = sum((part for part, _ in parts[1:]), parts[0][0]).expand(out.shape)
    return random.like(out, variance, mix(parts, out.shape))


def _along(vector: Tensor, x: Tensor, axis: int | None) -> Tensor:
    """A vector over channels, or a gain over the last axes, shaped to broadcast over ``x``."""
    return vector.view(
        [1] * (x.dim() - vector.dim()) + list(vector.shape) if axis is None else [1, -1] + [1] * (x.dim() - 2)
    )


def _common(vector: Tensor, x: Tensor, random: MomentTensor) -> Tensor | None:
    return None if random.setting.positions == "independent" else full_fraction(vector, x.shape)
