"""How much of a variance is shared by the positions of a tensor, so that averaging positions does not average it out.

Positions that share a random filter are correlated: the noise of the filter is the same at each. Every `MomentTensor`
carries, beside its variance, the fraction ρ of it that is common along the positions: ``shared`` has length 1 along
them, so the variance is in two parts, ρV (common: n positions have n² times its mean) and (1-ρ)V (independent:
variances add). An axis along which ρ has its full length is taken as independent; what channels have in common is in
`leanbayes.propagate.moments.ties`.

For a layer y_p = Σ w x_p the mean covariance of two positions p ≠ q is Σ σ_w² (mean x_p x_q + ρ_x σ_x²) + Σ w² ρ_x σ_x²
and the mean variance Σ σ_w² (mean x_p² + σ_x²) + Σ w² σ_x²; ρ is their ratio (``positions="split"``), so the average of
all positions has the right variance. With "shared" all of a random filter's noise is taken as common, with
"independent" none. The first axis is taken to hold the examples: each has a fraction of its own.

"split" is the default by measurement: on trained networks "independent" finds 0.6 to 0.8 of the standard deviation
(`docs/results/moments_accuracy.json`); "shared" is nearer for a ResNet-18 and a vision transformer, where it makes up
for ties that are not followed, and up to 1.4 times too wide for a convolutional net with a global average.
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.propagate.linear_ops import channel_axis
from leanbayes.propagate.moments.spread import Dense, Spread
from leanbayes.propagate.moments.tensor import Setting

__all__ = [
    "common_axes",
    "full_fraction",
    "lengthen",
    "linear_fraction",
    "mix",
    "of_broadcast",
    "ratio",
    "shorten",
    "sum_variance",
]

_TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
Part = tuple[Tensor, Tensor | None]
"""A variance, and the fraction of it that is shared."""


def common_axes(shape: Sequence[int], shared: Tensor | None) -> tuple[int, ...]:
    """The axes along which the fraction is common."""
    if shared is None:
        return ()
    return tuple(axis for axis, (n, m) in enumerate(zip(shape, shared.shape, strict=True)) if m == 1 < n)


def lengthen(shared: Tensor, shape: Sequence[int]) -> Tensor:
    """The fraction for every entry, as a view: common axes have stride 0, which shape operations keep.

    From contiguous memory, so that axes which can be merged are, whatever was done before.
    """
    return shared.contiguous().expand(tuple(shape))


def shorten(shared: Tensor) -> Tensor | None:
    """Undo `lengthen`, after a shape operation; None if no axis is common any more."""
    constant = [axis for axis, (n, step) in enumerate(zip(shared.shape, shared.stride(), strict=True)) if n > 1 > step]
    for axis in constant:
        shared = shared.narrow(axis, 0, 1)
    return shared if constant else None


def full_fraction(variance: Tensor, shape: Sequence[int]) -> Tensor | None:
    """ρ of something that is broadcast to ``shape``: 1 along the new axes. The axis of examples does not count."""
    own = [1] * (len(shape) - variance.dim()) + list(variance.shape)
    if not any(n > m for n, m in list(zip(shape, own, strict=True))[1:]):
        return None
    return variance.new_ones(own)


def of_broadcast(part: Part, shape: Sequence[int], setting: Setting) -> Part:
    """A part as it is after broadcasting to ``shape``."""
    variance, shared = part
    if variance.shape == torch.Size(shape) or setting.positions == "independent":
        return part
    copied = full_fraction(variance, shape)
    if copied is None and shared is not None:
        copied = shared.view([1] * (len(shape) - variance.dim()) + list(shared.shape))
    return variance, copied


def mix(parts: Sequence[Part], shape: Sequence[int]) -> Tensor | None:
    """The fraction of a sum of independent parts: the mean of theirs, weighted by variance."""
    if len(parts) == 1 and parts[0][1] is not None:
        return parts[0][1] if common_axes(shape, parts[0][1]) else None
    known = [shared for _, shared in parts if shared is not None]
    if not known:
        return None
    # not over the first axis: what one example gives must not depend on the others
    axes = tuple(a for a in range(1, len(shape)) if shape[a] > 1 and all(shared.shape[a] == 1 for shared in known))
    if not axes:
        return None
    total, common = None, None
    for variance, shared in parts:
        own = tuple(a for a in axes if a - len(shape) >= -variance.dim() and variance.shape[a - len(shape)] > 1)
        weight = variance.mean([a - len(shape) for a in own], keepdim=True) if own else variance
        total = weight if total is None else total + weight
        if shared is not None:
            common = weight * shared if common is None else common + weight * shared
    assert total is not None
    assert common is not None
    return _divide(common, total)


def ratio(common: Tensor, total: Tensor, axes: tuple[int, ...]) -> Tensor | None:
    """The fraction along ``axes`` from the part that is shared and the whole."""
    axes = tuple(axis for axis in axes if total.shape[axis] > 1)
    if not axes:
        return None
    return _divide(common.mean(axes, keepdim=True), total.mean(axes, keepdim=True))


def sum_variance(variance: Tensor, shared: Tensor | None, axes: tuple[int, ...]) -> tuple[Tensor, Tensor | None]:
    """The variance of a sum over ``axes``, which are kept with length 1, and its fraction."""
    common = common_axes(variance.shape, shared)
    together = tuple(axis for axis in axes if axis in common)
    if shared is None or not together:
        total = variance.sum(axes, keepdim=True)
        return total, None if shared is None else ratio(
            (shared * variance).sum(axes, keepdim=True), total, tuple(axis for axis in common if axis not in axes)
        )
    added = variance.sum(together, keepdim=True)
    correlated = shared * added * math.prod(variance.shape[axis] for axis in together)  # ρ is of the mean pair
    alone = (1 - shared) * added
    rest = tuple(axis for axis in axes if axis not in together)
    if rest:
        correlated, alone = correlated.sum(rest, keepdim=True), alone.sum(rest, keepdim=True)
    total = correlated + alone
    return total, ratio(correlated, total, tuple(axis for axis in common if axis not in axes))


def linear_fraction(
    operation: Callable[..., Tensor],
    setting: Setting,
    x: tuple[Tensor, Tensor | None, Tensor | None],
    weight: tuple[Tensor | None, Spread | None],
    bias_variance: Tensor | None,
    groups: int = 1,
    means: tuple[Tensor, Tensor, Tensor] | None = None,
) -> Tensor | None:
    """ρ after a linear layer or a convolution, from means over the positions alone: no operation of full size.

    ``weight`` is its square, which only a random input needs, and its variance; ``means`` are those of x, x² and the
    variance of x, where they are known.
    """
    mean, variance, shared = x
    channel = channel_axis(operation, mean)
    if operation is F.linear:
        axes = tuple(a for a in range(mean.dim() - 1) if a != setting.examples) if mean.dim() > 2 else ()
    else:
        axes = tuple(range(channel + 1, mean.dim()))
    if setting.positions == "independent" or not any(mean.shape[axis] > 1 for axis in axes):
        return None

    def layer(value: Tensor, kernel: Tensor) -> Tensor:
        if operation is F.linear:
            return F.linear(value, kernel)
        if groups == 1 and value.dim() == kernel.dim():  # a product of matrices, without the start of a convolution
            matrix = kernel.flatten(1).mT if operation in _TRANSPOSED else kernel.flatten(1)
            return F.linear(value.flatten(1), matrix).view(len(value), len(matrix), *value.shape[2:])
        return operation(value, kernel, None, groups=groups)

    w_square = None if weight[0] is None else Dense(weight[0]).folded(operation)
    w_variance = None if weight[1] is None else weight[1].folded(operation)
    common, total = [], []
    spread: Tensor | None
    if means is not None:
        centre, square, spread = means
    else:
        centre, square = mean.mean(axes, keepdim=True), mean.square().mean(axes, keepdim=True)
        spread = None if variance is None else variance.mean(axes, keepdim=True)
    same = None if spread is None or shared is None else _at_positions(shared, axes) * spread
    if w_variance is not None:
        total.append(layer(square if spread is None else square + spread, w_variance))
        if setting.positions == "shared":
            common.append(total[0])
        else:
            n = math.prod(mean.shape[axis] for axis in axes)
            pairs = (centre.square() * n - square) / (n - 1)  # mean of x_p x_q over p ≠ q
            common.append(layer(pairs if same is None else pairs + same, w_variance))
    if spread is not None:
        assert w_square is not None
        total.append(layer(spread, w_square))
        if same is not None:
            common.append(layer(same, w_square))
    if bias_variance is not None:
        column = bias_variance if operation is F.linear else bias_variance.view(-1, *[1] * len(axes))
        total.append(column)
        common.append(column)
    if not common:
        return None
    found = _divide(sum(common[1:], common[0]), sum(total[1:], total[0])).clamp_min(0)
    return found.view([1] * (mean.dim() - found.dim()) + list(found.shape))


def _at_positions(shared: Tensor, axes: tuple[int, ...]) -> Tensor:
    return shared.mean(axes, keepdim=True)


def _divide(common: Tensor, total: Tensor) -> Tensor:
    return common / torch.where(total > 0, total, 1)
