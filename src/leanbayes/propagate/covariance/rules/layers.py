"""Linear layers and convolutions, whose input, weight and bias may each be random or not (the original VDP).

    Cov(y_op, y_o'q) = Σ w_oi w_o'j Cov(x_pi, x_qj) + δ_oo' [Σ_i σ_oi² E(x_pi x_qi) + σ_o²]

for independent weights: positions p and q that share a random filter o are correlated, filters by their input alone.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.propagate.covariance.rules.common import parameter, refuse_weight, second_moments
from leanbayes.propagate.covariance.tensor import RULES, CovarianceTensor, expected_of, first_random, merge
from leanbayes.propagate.dispatch import missing
from leanbayes.propagate.linear_ops import Operation

__all__ = ["convolution", "linear"]

ASSUMES = "weights independent of each other and of the input"
Parameter = tuple[Tensor, Tensor | None]
"""Mean and variance; None where nothing is random."""


@RULES.rule(F.linear, exact=True, assumes=ASSUMES)
def linear(operation: Operation, input: Any, weight: Any, bias: Any = None) -> CovarianceTensor:
    """Pass vectors (N, features); further axes are positions that share the weights."""
    random = first_random(input, weight, bias)
    refuse_weight(operation, input)
    (w, w_variance), (b, b_variance) = parameter(operation, weight), parameter(operation, bias)
    if input.dim() < 2:
        missing(operation, random, "an input needs a first axis of examples")
    if input.dim() > 2:
        moved = input.flatten(1, -2).transpose(1, 2)
        kernel = (w.unsqueeze(-1), None if w_variance is None else w_variance.unsqueeze(-1))
        passed = _convolved(F.conv1d, random, moved, kernel, (b, b_variance)).transpose(1, 2)
        assert isinstance(passed, CovarianceTensor)
        return passed.like(operation(expected_of(input), w, b), passed.blocks)
    if not isinstance(input, CovarianceTensor):
        mean = operation(input, w, b)
        variance = torch.zeros_like(mean) if w_variance is None else F.linear(input.square(), w_variance)
        return CovarianceTensor.independent(
            mean, variance if b_variance is None else variance + b_variance, random.setting
        )
    mean = operation(input.expected, w, b)
    random.setting.check(len(mean), 1, w.shape[0], mean)
    groups = input.blocks.shape[1]
    half = w.view(w.shape[0], groups, -1).transpose(0, 1) @ input.blocks  # (N, G, out, B)
    out = half.transpose(1, 2).flatten(2) @ w.T
    if w_variance is not None or b_variance is not None:
        added = torch.zeros_like(mean)
        if w_variance is not None:
            added = F.linear(input.expected.square() + input.variance.flatten(1), w_variance)
        out = out + torch.diag_embed(added if b_variance is None else added + b_variance)
    return input.like(mean, out.unsqueeze(1))


@RULES.rule(F.conv1d, F.conv2d, F.conv3d, exact=True, assumes=ASSUMES)
def convolution(
    operation: Operation, input: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any
) -> CovarianceTensor:
    """Pass examples (N, channels, ...), with any stride, padding, dilation and groups."""
    random = first_random(input, weight, bias)
    refuse_weight(operation, input)
    kernel, offset = parameter(operation, weight), parameter(operation, bias)
    if input.dim() != kernel[0].dim():
        missing(operation, random, "an input needs a first axis of examples")
    options = dict(zip(("stride", "padding", "dilation", "groups"), args, strict=False)) | kwargs
    return _convolved(operation, random, input, kernel, offset, **options)


def _convolved(
    operation: Operation, random: CovarianceTensor, input: Any, kernel: Parameter, bias: Parameter, **options: Any
) -> CovarianceTensor:
    (w, w_variance), (b, b_variance) = kernel, bias
    x = input.expected if isinstance(input, CovarianceTensor) else input
    mean = operation(x, w, b, **options)
    examples, channels = mean.shape[:2]
    positions = mean[0, 0].numel()
    random.setting.check(examples, channels, positions, mean)
    own: Tensor | None = None  # of each filter, (N, channels, positions, positions)
    if w_variance is not None:
        own = _of_filters(operation, input, w_variance, options)
    if b_variance is not None:
        each = b_variance.view(-1, 1, 1)
        own = each.expand(examples, channels, positions, positions) if own is None else own + each
    if not isinstance(input, CovarianceTensor):
        assert own is not None
        return CovarianceTensor.of(mean, own, random.setting)
    random.setting.check(examples, 1, channels * positions, mean)
    out = _passed(operation, input, w, options)
    if own is not None:
        grid = out.view(examples, channels, positions, channels, positions)
        grid.diagonal(dim1=1, dim2=3).add_(own.movedim(1, -1))
    return input.like(mean, out.unsqueeze(1))


def _passed(operation: Operation, x: CovarianceTensor, w: Tensor, options: dict[str, Any]) -> Tensor:
    """Compute K Σ Kᵀ, where K is the convolution by the mean weights: first its columns, then its rows."""
    blocks = merge(x, x.shape[1] if options.get("groups", 1) == 1 else 1)
    examples, groups, size, _ = blocks.shape
    each = x.shape[1] // groups
    halves = []
    for g in range(groups):
        columns = blocks[:, g].reshape(-1, each, *x.shape[2:])
        part = w[:, g * each : (g + 1) * each] if groups > 1 else w
        halves.append(operation(columns, part, None, **options).view(examples, size, -1))
    half = torch.cat(halves, 1) if groups > 1 else halves[0]  # (N, in, out)
    rows = operation(half.mT.reshape(-1, *x.shape[1:]), w, None, **options)
    return rows.view(examples, half.shape[2], -1)


def _of_filters(operation: Operation, input: Any, variance: Tensor, options: dict[str, Any]) -> Tensor:
    """Compute Σ_i σ_oi² E(x_pi x_qi), (N, channels out, positions, positions)."""
    groups = options.get("groups", 1)
    met = _positions_met(operation, input, variance, options)  # (offsets, positions)
    by_group = variance.reshape(groups, variance.shape[0] // groups, variance.shape[1], -1)  # (g, out, in, offsets)
    if not isinstance(input, CovarianceTensor):
        patches = F.pad(input.flatten(2), (1, 0))[:, :, met]  # (N, in, offsets, positions)
        patches = patches.view(len(input), groups, 1, -1, met.shape[1])
        weighed = by_group.flatten(2).unsqueeze(-1) * patches
        return (weighed.mT @ patches).flatten(1, 2)
    second = F.pad(second_moments(input), (1, 0, 1, 0))  # a position before the first stands for the padding
    second = second.view(len(input.expected), groups, -1, *second.shape[2:])
    total: Tensor | None = None
    for offset, positions in enumerate(met):
        part = second.index_select(-2, positions).index_select(-1, positions)
        added = torch.einsum("goi,ngipq->ngopq", by_group[..., offset], part)
        total = added if total is None else total + added
    assert total is not None
    return total.flatten(1, 2)


def _positions_met(operation: Operation, input: Any, kernel: Tensor, options: dict[str, Any]) -> Tensor:
    """Return the position that each offset of the kernel meets at each output, counted from 1; 0 is padding.

    A convolution of the positions' numbers by kernels with a single 1 says so, whatever its options.
    """
    count = math.prod(input.shape[2:])
    numbers = torch.arange(1, count + 1, dtype=torch.float64, device=kernel.device).view(1, 1, *input.shape[2:])
    offsets = math.prod(kernel.shape[2:])
    ones = torch.eye(offsets, dtype=torch.float64, device=kernel.device).view(offsets, 1, *kernel.shape[2:])
    numbers_met = operation(numbers, ones, None, **{name: value for name, value in options.items() if name != "groups"})
    return numbers_met[0].flatten(1).round().long()
