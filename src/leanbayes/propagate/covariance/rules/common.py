"""Functions that several rules use: linear maps on both sides of a covariance, and access to parameters."""

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from leanbayes.propagate.covariance.tensor import CovarianceTensor, merge
from leanbayes.propagate.dispatch import missing

__all__ = ["linear_map", "parameter", "refuse_weight", "sandwich", "scaled", "second_moments", "summed"]


def parameter(operation: Any, value: Any) -> tuple[Any, Tensor | None]:
    """Return the mean and variance of a weight or of a plain value; raise for any other random tensor."""
    if not isinstance(value, CovarianceTensor):
        return value, None
    if value.weight is None:
        missing(operation, value, "its parameters may be random weights, not what depends on the input")
    return value.expected, value.weight.variance()


def sandwich(blocks: Tensor, apply: Callable[[Tensor], Tensor]) -> Tensor:
    """Compute A Σ Aᵀ, where ``apply`` maps the rows of (N, G, rows, B) to (N, G, rows, B')."""
    return apply(apply(blocks).mT)


def linear_map(
    x: CovarianceTensor, mean: Tensor, apply: Callable[[Tensor], Tensor], *, channelwise: bool
) -> CovarianceTensor:
    """Apply an operation that is linear in x and mixes neither examples nor (if ``channelwise``) channels."""
    blocks = merge(x, x.shape[1] if channelwise else 1)
    examples, groups = blocks.shape[:2]
    shape = (x.shape[1] // groups, *x.shape[2:]) if channelwise else x.shape[1:]
    x.setting.check(examples, groups, mean[0].numel() // groups, mean)

    def rows(value: Tensor) -> Tensor:
        return apply(value.reshape(-1, *shape)).reshape(*value.shape[:-1], -1)

    return x.like(mean, sandwich(blocks, rows))


def scaled(x: CovarianceTensor, factor: Tensor) -> Tensor:
    """Return the covariance of c∘x for a plain c that broadcasts to x."""
    if factor.numel() == 1:
        return x.blocks * factor.reshape(()) ** 2
    shape = [1] * (x.dim() - factor.dim()) + list(factor.shape)
    flat = x.by_block(factor.view(shape))
    return x.blocks * flat.unsqueeze(-1) * flat.unsqueeze(-2)


def summed(one: CovarianceTensor, other: CovarianceTensor) -> CovarianceTensor:
    """Add two covariances in the blocks that both have; the mean is that of the first."""
    groups = one.blocks.shape[1], other.blocks.shape[1]
    return one.like(one.expected, merge(one, groups[1]) + merge(other, groups[0]))


def second_moments(x: CovarianceTensor) -> Tensor:
    """Compute E(x_p x_q) for the positions of each channel, (N, channels, positions, positions)."""
    examples, channels = x.shape[:2]
    blocks = merge(x, channels)
    groups, positions = blocks.shape[1], math.prod(x.shape[2:])
    parts = blocks.reshape(examples, groups, channels // groups, positions, channels // groups, positions)
    alone = parts.diagonal(dim1=2, dim2=4).movedim(-1, 2).reshape(examples, channels, positions, positions)
    flat = x.expected.reshape(examples, channels, positions)
    return alone + flat.unsqueeze(-1) * flat.unsqueeze(-2)


def refuse_weight(operation: Any, input: Any) -> None:
    """Raise if the input of a layer is a random weight, which has no axis of examples."""
    if isinstance(input, CovarianceTensor) and input.weight is not None:
        missing(operation, input, "its input is a random weight, which has no axis of examples")
