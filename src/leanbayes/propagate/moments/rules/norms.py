"""Batch, layer, group, instance and root-mean-square norm. Their statistics count as plain numbers.

The statistics of a batch are those of the means. All others are the expected ones, to which noise adds its variance:
with those of the means alone, untrained transformers came out two to four times too wide.

VDP++ scales the variance of layer norm by the mean (eq. 14). The gain γ scales it: (γ/√(Var + ε))²·σ².
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes._ops import innermost_moments
from leanbayes._ops.moments import norm_tokens
from leanbayes._ops.positions import fraction_of
from leanbayes.propagate.linear_ops import Operation
from leanbayes.propagate.moments.correlations import Averages, Correlations
from leanbayes.propagate.moments.kinds import RULES, Norm, apply_norm
from leanbayes.propagate.moments.tensor import MomentTensor, expected_of, variance_of

__all__ = ["batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm"]

ASSUMES = "the statistics are plain numbers, those of the means"
EXPECTED = "the statistics are plain numbers, the expected ones"


@RULES.norm(F.batch_norm, exact=False, assumes=ASSUMES + "; exact in eval mode for independent inputs")
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
) -> Norm:
    """Normalise over the examples and positions of each channel; the means update the running statistics."""
    x = expected_of(input)
    if training:
        axes = tuple(axis for axis in range(x.dim()) if axis != 1)
        variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    else:
        mean, variance = (_by_channel(statistic, x) for statistic in (running_mean, running_var))
    scale, gain, offset = (variance + eps).rsqrt(), expected_of(weight), expected_of(bias)
    normed = None if training else _norm_of_innermost(x, mean.flatten(), scale.flatten(), gain, offset)
    if normed is None:
        normed = operation(x, running_mean, running_var, gain, offset, training, momentum, eps)
    return Norm(normed, mean, scale, weight, bias, by_channel=True)


def _norm_of_innermost(x: Tensor, mean: Tensor, scale: Tensor, gain: Any, offset: Any) -> Tensor | None:
    """Norm images by known statistics if the batch is innermost: torch would copy them into another layout."""
    if not innermost_moments.takes(x) or mean.dtype != x.dtype:
        return None
    factor = scale if gain is None else scale * gain
    start = -mean * factor if offset is None else offset - mean * factor
    return innermost_moments.norm_means(x, factor, start) if factor.dtype == start.dtype == x.dtype else None


@RULES.rule(F.layer_norm, torch.layer_norm, exact=False, assumes=EXPECTED)
def layer_norm(
    operation: Operation, input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> MomentTensor:
    """Normalise over the last axes, in one sweep over memory where a compiled one exists."""
    x, gain = expected_of(input), expected_of(weight)
    axes = tuple(range(-len(normalized_shape), 0))
    normed = operation(x, normalized_shape, gain, expected_of(bias), eps)
    if isinstance(input, MomentTensor) and len(axes) == 1:
        swept = _sweep_tokens(input, normed, weight, bias, eps)
        if swept is not None:
            return swept
    variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    scale = (variance + eps).rsqrt()
    if not isinstance(input, MomentTensor):
        return apply_norm(input, Norm(normed, mean, scale, weight, bias, None))
    added = input.correlations.noise_of_deviations(input.variance, axes)
    expected = (variance + added + eps).rsqrt()
    rescaled = _rescaled(normed, x - mean, expected - scale, gain)
    return apply_norm(input, Norm(rescaled, mean, expected, weight, bias, None, axes))


def _sweep_tokens(input: MomentTensor, normed: Tensor, weight: Any, bias: Any, eps: float) -> MomentTensor | None:
    """Do the same for tokens whose units are independent; return None if the sweep does not take these tensors."""
    shared, rho = input.correlations, input.correlations.positions
    followed = shared.units is not None or shared.neighbours is not None or torch.compiler.is_compiling()
    if followed or input.dim() != 3 or (rho is not None and rho.shape[1] != 1):
        return None
    x = input.expected
    zero = x.new_zeros(x.shape[-1])
    gain = torch.ones_like(zero) if weight is None else expected_of(weight)
    on_square, added = (zero if v is None else v for v in (variance_of(weight), variance_of(bias)))
    swept = norm_tokens(x, input.variance, normed, gain, on_square, added, eps)
    if swept is None:
        return None
    variance, sums = swept
    own, far = (sums / x.shape[1]).unbind(1)
    fresh, passed = on_square * (own + far) + added, gain.square() * own  # the noise of gain and offset, and of x
    total = fresh + passed
    averages = Averages(None, None, total.unsqueeze(1))
    random = any(isinstance(value, MomentTensor) for value in (weight, bias))
    copied = random and input.setting.positions != "independent"  # which all tokens share
    if x.shape[1] < 2 or (rho is None and not copied):
        return input.like(normed, variance, None, averages)
    common = fresh if copied else torch.zeros_like(fresh)
    if rho is not None:
        common = common + passed * rho.squeeze(1)
    return input.like(normed, variance, Correlations(fraction_of(common, total).unsqueeze(1)), averages)


@RULES.norm(F.rms_norm, torch.rms_norm, exact=False, assumes=EXPECTED)
def rms_norm(
    operation: Operation, input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None
) -> Norm:
    """Compute the moments of x / √(mean x² + ε), with the mean over the last axes."""
    x, gain = expected_of(input), expected_of(weight)
    axes = tuple(range(-len(normalized_shape), 0))
    square, least = x.square().mean(axes, keepdim=True), torch.finfo(x.dtype).eps if eps is None else eps
    scale = (square + least).rsqrt()
    normed = operation(x, normalized_shape, gain, eps)
    if isinstance(input, MomentTensor):
        expected = (square + input.variance.mean(axes, keepdim=True) + least).rsqrt()
        normed, scale = _rescaled(normed, x, expected - scale, gain), expected
    return Norm(normed, torch.zeros_like(scale), scale, weight, None, None)


@RULES.norm(F.group_norm, torch.group_norm, exact=False, assumes=EXPECTED)
def group_norm(
    operation: Operation, input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Norm:
    """Normalise over the channels of a group and all positions."""
    x, gain = expected_of(input), expected_of(weight)
    grouped = (x.shape[0], num_groups, -1)
    variance, mean = torch.var_mean(x.reshape(grouped), 2, correction=0, keepdim=True)
    channels = x.shape[1] // num_groups
    shape = (x.shape[0], x.shape[1], *[1] * (x.dim() - 2))
    normed = operation(x, num_groups, gain, expected_of(bias), eps)
    expected = (variance + _noise(input, grouped, (2,)) + eps).rsqrt()
    statistics = (mean, (variance + eps).rsqrt(), expected)
    mean, scale, expected = (s.expand(-1, -1, channels).reshape(shape) for s in statistics)
    normed = _rescaled(normed, x - mean, expected - scale, None if gain is None else _by_channel(gain, x))
    return Norm(normed, mean, expected, weight, bias)


@RULES.norm(F.instance_norm, exact=False, assumes=EXPECTED)
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
) -> Norm:
    """Normalise over the positions of each channel of each example."""
    x, gain, offset = expected_of(input), expected_of(weight), expected_of(bias)
    axes = tuple(range(2, x.dim()))
    normed = operation(x, running_mean, running_var, gain, offset, use_input_stats, momentum, eps)
    if not use_input_stats:
        mean, variance = (_by_channel(statistic, x) for statistic in (running_mean, running_var))
        return Norm(normed, mean, (variance + eps).rsqrt(), weight, bias)
    variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    expected = (variance + _noise(input, x.shape, axes) + eps).rsqrt()
    change = expected - (variance + eps).rsqrt()
    normed = _rescaled(normed, x - mean, change, None if gain is None else _by_channel(gain, x))
    return Norm(normed, mean, expected, weight, bias)


def _noise(input: Any, shape: Any, axes: tuple[int, ...]) -> Tensor | float:
    """Return what noise adds to the expected squared deviation from the mean over channels and positions.

    The part of a channel's noise that all its positions share moves their mean, and adds nothing.
    """
    if not isinstance(input, MomentTensor):
        return 0.0
    rho = input.correlations.positions
    own = input.variance if rho is None else input.variance * (1 - rho)
    return own.reshape(shape).mean(axes, keepdim=True)


def _rescaled(normed: Tensor, away: Tensor, change: Tensor, gain: Tensor | None) -> Tensor:
    """Return normed numbers after the scale has changed; ``away`` are the deviations from the centre."""
    return normed + away * (change if gain is None else change * gain)


def _by_channel(vector: Tensor, x: Tensor) -> Tensor:
    return vector.view([1, -1] + [1] * (x.dim() - 2))
