"""The variance of a linear operation whose filters have one variance for all their weights: a box sum (VDP++)."""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.propagate.linear_ops import Operation, channel_axis

__all__ = ["Shared", "variance_through"]

_TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


def variance_through(
    operation: Operation,
    second: Tensor,
    variance: Tensor,
    shape: torch.Size,
    bias_variance: Tensor | None,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """Compute op(x², σ², σ_b²) for a weight of this ``shape``; its variance has length 1 along axes that share one.

    Where all weights of an output filter o share σ_o², Σ σ_oi² x_i² = σ_o² Σ x_i²: the sum over the channels of a
    group, then a convolution of one channel with ones, whatever the number of inputs and outputs.

    Args:
        operation: one of `LINEAR_OPS`.
        second: the second moment of the input.
        variance: the variance of the weight: one for each coordinate, or one for each filter (see
            `RandomWeight.shared_variance`).
        shape: the shape of the weight.
        bias_variance: the variance of the bias; None if the bias is not random.
        args: further positional arguments of the operation, such as stride and padding.
        kwargs: further keyword arguments of the operation.

    >>> variance_through(F.linear, torch.ones(1, 3), torch.tensor([[1.0], [4.0]]), torch.Size((2, 3)), None)
    tensor([[ 3., 12.]])
    """
    outputs = 1 if operation in _TRANSPOSED else 0
    own = any(n > 1 for axis, n in enumerate(variance.shape) if axis != outputs)
    if variance.shape == shape or own:
        return operation(second, variance.expand(shape), bias_variance, *args, **kwargs)
    axis = channel_axis(operation, second)
    groups = 1 if operation is F.linear else kwargs.get("groups", args[3] if len(args) > 3 else 1)
    dtype = torch.float32 if second.dtype.itemsize < 4 else second.dtype  # half precision may hold σ²Σx² but not Σx²
    box = second.unflatten(axis, (groups, -1)).sum(axis + 1, dtype=dtype)
    if operation is not F.linear:
        box = operation(box, box.new_ones((groups, 1, *shape[2:])), None, *args, **kwargs)
    filters = variance.flatten().expand(shape[outputs]).to(dtype).view(1 if outputs else groups, -1)
    innermost = second.stride(axis) == 1  # as the mean's will be, so that what follows reads both in one order
    spread = _for_each_filter(box, filters, axis, box.dim() - 1 if innermost else axis).to(second.dtype)
    if bias_variance is None:
        return spread
    return spread + bias_variance.view(-1, *[1] * (spread.dim() - axis - 1))


@dataclass(frozen=True)
class Shared:
    """The variance of a weight that has one variance for each filter, in the form that the rules of moments use."""

    variance: Tensor
    shape: torch.Size

    def product(self, operation: Operation, second: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Compute op(E x², σ_w²), which is a box sum."""
        return variance_through(operation, second, self.variance, self.shape, None, *args, **kwargs)

    def folded(self, operation: Operation, shares: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Return the variance summed over the offsets of a filter; these axes stay, with length 1."""
        offsets = self.shape[2:]
        whole = math.prod(offsets) if shares is None else shares.sum()
        return self.variance.expand(*self.shape[:2], *[1] * len(offsets)) * whole


def _for_each_filter(box: Tensor, filters: Tensor, axis: int, place: int) -> Tensor:
    """Multiply the sum of each group by the variances of its filters; the channels lie at ``place`` in memory."""
    moved = box.movedim(axis, place).unsqueeze(place + 1)
    product = moved * filters.view(*filters.shape, *[1] * (moved.dim() - place - 2))
    return product.flatten(place, place + 1).movedim(place, axis)
