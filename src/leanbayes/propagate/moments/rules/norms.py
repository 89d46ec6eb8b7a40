"""Batch, layer, group, instance and root-mean-square norm. Their statistics are taken as numbers.

Those of a batch are of the means. All others are the expected ones: noise adds its variance to squared deviations. With
those of the means alone, untrained transformers came out two to four times too wide.

002 scales the variance of layer norm by the mean (eq. 14); it is the gain γ that scales it: (γ/√(Var + ε))²·σ².
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes._ops.moments import affine
from leanbayes.propagate.linear_ops import Operation
from leanbayes.propagate.moments.shared import full_fraction, mix
from leanbayes.propagate.moments.tensor import RULES, Averages, MomentTensor, first_random, parts_of
from leanbayes.propagate.moments.ties import after_norm, noise_of_deviations, scaled

__all__ = ["batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm"]

ASSUMES = "statistics do not move: those of the means"
EXPECTED = "statistics do not move: the expected ones"


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
    scale = (variance + eps).rsqrt()
    swept = _by_channel(out, input, weight, bias, mean.flatten(), scale.flatten())
    return _normed(out, input, weight, bias, mean, scale, 1) if swept is None else swept


@RULES.rule(F.layer_norm, torch.layer_norm, exact=False, assumes=EXPECTED)
def layer_norm(
    operation: Operation, input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> MomentTensor:
    """Over the last axes."""
    x, gain, offset = parts_of(input)[0], parts_of(weight)[0], parts_of(bias)[0]
    axes = tuple(range(-len(normalized_shape), 0))
    variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    scale, away = (variance + eps).rsqrt(), x - mean
    out = operation(x, normalized_shape, gain, offset, eps)
    if not isinstance(input, MomentTensor):
        return _normed(out, input, weight, bias, mean, scale, None)
    expected = (variance + noise_of_deviations(input, axes) + eps).rsqrt()
    out = out + away * (expected - scale if gain is None else (expected - scale) * gain)
    made = _normed(out, input, weight, bias, mean, expected, None)
    return after_norm(made, input, away * expected, expected if gain is None else expected * gain, axes)


@RULES.rule(F.rms_norm, torch.rms_norm, exact=False, assumes=EXPECTED)
def rms_norm(
    operation: Operation, input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None
) -> MomentTensor:
    """x / √(mean x² + ε)."""
    x, gain = parts_of(input)[0], parts_of(weight)[0]
    axes = tuple(range(-len(normalized_shape), 0))
    square, least = x.square().mean(axes, keepdim=True), torch.finfo(x.dtype).eps if eps is None else eps
    scale = (square + least).rsqrt()
    out = operation(x, normalized_shape, gain, eps)
    if isinstance(input, MomentTensor):
        expected = (square + input.variance.mean(axes, keepdim=True) + least).rsqrt()
        out, scale = out + x * (expected - scale if gain is None else (expected - scale) * gain), expected
    return _normed(out, input, weight, None, torch.zeros_like(scale), scale, None)


@RULES.rule(F.group_norm, torch.group_norm, exact=False, assumes=EXPECTED)
def group_norm(
    operation: Operation, input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> MomentTensor:
    """Over the channels of a group and all positions."""
    x, gain, offset = parts_of(input)[0], parts_of(weight)[0], parts_of(bias)[0]
    grouped = x.reshape(x.shape[0], num_groups, -1)
    variance, mean = torch.var_mean(grouped, 2, correction=0, keepdim=True)
    each = x.shape[1] // num_groups
    shape = (x.shape[0], x.shape[1], *[1] * (x.dim() - 2))
    out = operation(x, num_groups, gain, offset, eps)
    expected = (variance + _noise(input, (x.shape[0], num_groups, -1), (2,)) + eps).rsqrt()
    mean, scale, expected = (s.expand(-1, -1, each).reshape(shape) for s in (mean, (variance + eps).rsqrt(), expected))
    return _normed(_moved(out, x - mean, expected - scale, gain), input, weight, bias, mean, expected, 1)


@RULES.rule(F.instance_norm, exact=False, assumes=EXPECTED)
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
    axes = tuple(range(2, x.dim()))
    out = operation(x, running_mean, running_var, gain, offset, use_input_stats, momentum, eps)
    if not use_input_stats:
        mean, variance = (_along(statistic, x, 1) for statistic in (running_mean, running_var))
        return _normed(out, input, weight, bias, mean, (variance + eps).rsqrt(), 1)
    variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    expected = (variance + _noise(input, x.shape, axes) + eps).rsqrt()
    out = _moved(out, x - mean, expected - (variance + eps).rsqrt(), gain)
    return _normed(out, input, weight, bias, mean, expected, 1)


def _noise(input: Any, shape: Any, axes: tuple[int, ...]) -> Tensor | float:
    """What noise adds to the expected squared deviation from the mean over channels and positions.

    Of each channel's noise, the part that its positions have in common does not leave its mean.
    """
    if not isinstance(input, MomentTensor):
        return 0.0
    own = input.variance if input.shared is None else input.variance * (1 - input.shared)
    return own.reshape(shape).mean(axes, keepdim=True)


def _moved(out: Tensor, away: Tensor, change: Tensor, gain: Tensor | None) -> Tensor:
    """Normed numbers, after the scale has changed."""
    return out + away * (change if gain is None else change * _along(gain, away, 1))


def _normed(
    out: Tensor, input: Any, weight: Any, bias: Any, mean: Tensor, scale: Tensor, axis: int | None
) -> MomentTensor:
    """Var y = γ²s²σ² + σ_γ² (x̂² + s²σ²) + σ_β², with s = 1/√(Var + ε) and x̂ = (x - mean)·s."""
    (x, x_variance, shared), (gain, gain_variance, _) = parts_of(input), parts_of(weight)
    offset_variance = parts_of(bias)[1]
    random = first_random(input, weight, bias)
    parts: list[tuple[Tensor, Tensor | None]] = []
    if x_variance is not None:
        factor = scale if gain is None else scale * _along(gain, x, axis)
        parts.append((factor.square() * x_variance, shared))
    if gain_variance is not None:
        spread = None if x_variance is None else scale.square() * x_variance
        second = ((x - mean) * scale).square()
        factor = _along(gain_variance, x, axis)
        parts.append((factor * (second if spread is None else second + spread), _common(factor, x, random)))
    if offset_variance is not None:
        added = _along(offset_variance, x, axis)
        parts.append((added, _common(added, x, random)))
    variance = sum((part for part, _ in parts[1:]), parts[0][0]).expand(out.shape)
    made = random.like(out, variance, mix(parts, out.shape))
    if not isinstance(input, MomentTensor):
        return made
    factor = scale if gain is None else scale * _along(gain, x, axis)
    return made.tied(scaled(input, factor, variance))


def _by_channel(out: Tensor, input: Any, weight: Any, bias: Any, mean: Tensor, scale: Tensor) -> MomentTensor | None:
    """The same in one sweep over memory, where statistics, gain and offset are numbers for each channel."""
    (x, x_variance, shared), (gain, gain_variance, _), (offset, offset_variance, _) = map(
        parts_of, (input, weight, bias)
    )
    if x_variance is None or x.dim() != 4:
        return None
    none = torch.zeros_like(scale)
    factor = scale if gain is None else scale * gain
    doubt = none if gain_variance is None else scale.square() * gain_variance
    added = none if offset_variance is None else offset_variance
    vectors = mean, factor.square() + doubt, doubt, added
    found = affine(x, x_variance, *vectors)
    if found is None:
        return None
    variance, sums = found
    fraction = None
    random = first_random(input, weight, bias)
    alone = gain_variance is None and offset_variance is None
    spread, square = (sums * (x.shape[0] * x.shape[1] / x.numel())).unbind(1)
    common = doubt * (spread + square) + added
    passed = factor.square() * spread
    total = passed + common
    if random.setting.positions != "independent" and not (alone and shared is None):
        if shared is not None:
            common = common + passed * shared.flatten(1)
        fraction = (common / torch.where(total > 0, total, 1)).view(*common.shape, *[1] * (x.dim() - 2))
    made = random.like(out, variance, fraction)
    if not torch.is_grad_enabled():
        input.averages = input.averages or Averages(None, None, spread[..., None, None])
        made.averages = Averages(None, None, total[..., None, None])
    made.tied(scaled(input, _along(factor, x, 1), variance, made.averages))
    if made.requires_grad:
        start = (none if offset is None else offset) - mean * factor
        made.remake = _again(*(part.detach() for part in (x, x_variance, factor, start, *vectors)))
    return made


def _again(
    x: Tensor, x_variance: Tensor, factor: Tensor, start: Tensor, *vectors: Tensor
) -> Callable[[], tuple[Tensor, Tensor]]:
    """Mean and variance after a batch norm once more, from its input, which its own backward pass keeps anyway."""

    def again() -> tuple[Tensor, Tensor]:
        mean = torch.addcmul(_along(start, x, 1), x, _along(factor, x, 1))
        found = affine(x, x_variance, *vectors)
        assert found is not None
        return mean, found[0]

    return again


def _along(vector: Tensor, x: Tensor, axis: int | None) -> Tensor:
    """A vector over channels, or a gain over the last axes, shaped to broadcast over ``x``."""
    return vector.view(
        [1] * (x.dim() - vector.dim()) + list(vector.shape) if axis is None else [1, -1] + [1] * (x.dim() - 2)
    )


def _common(vector: Tensor, x: Tensor, random: MomentTensor) -> Tensor | None:
    return None if random.setting.positions == "independent" else full_fraction(vector, x.shape)
