"""The variance of a weight in a linear layer, as it is stored: for every entry, or for the few that are random."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch.nn.functional as F
from torch import Tensor

from leanbayes._ops import sparse
from leanbayes._ops.moments import turned
from leanbayes.propagate.linear_ops import Operation
from leanbayes.propagate.moments.tensor import MomentTensor
from leanbayes.propagate.shared_variance import Shared

__all__ = ["Dense", "Sparse", "Spread", "spread_of"]

_CONVOLUTIONS = (F.conv1d, F.conv2d, F.conv3d)
_FEWEST_ENTRIES = 2**12  # of a weight: below, a dense product is quicker than its preparation


class Spread(Protocol):
    """σ_w² as a linear operation meets it."""

    def product(self, operation: Operation, second: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """op(E x², σ_w²)."""
        ...

    def folded(self, operation: Operation, shares: Tensor | None = None) -> Tensor:
        """Summed over the offsets of a filter, which are kept with length 1: what averages of positions meet.

        ``shares`` are factors for the offsets.
        """
        ...


@dataclass(frozen=True)
class Dense:
    """A variance for every entry; where it is a function of scales that exist anyway, these and the function."""

    variance: Tensor
    scales: Tensor | None = None
    of_scales: Callable[[Tensor], Tensor] | None = None

    def product(self, operation: Operation, second: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """One operation of the layer's own size."""
        return operation(second, self.variance, None, *args, **kwargs)

    def folded(self, operation: Operation, shares: Tensor | None = None) -> Tensor:
        """A sum."""
        if operation is F.linear:
            return self.variance
        if shares is not None:
            return (self.variance.flatten(2) @ shares)[(..., *[None] * (self.variance.dim() - 2))]
        return self.variance.sum(tuple(range(2, self.variance.dim())), keepdim=True)


@dataclass(frozen=True)
class Sparse:
    """Variances of some entries by their flat positions; the others are not random."""

    index: Tensor
    values: Tensor
    shape: tuple[int, ...]

    def product(self, operation: Operation, second: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Over the random entries alone."""
        if operation is F.linear:
            return sparse.linear(second, self.index, self.shape, self.values)
        return sparse.conv(turned(second), self.index, self.shape, self.values, *args, **kwargs)

    def folded(self, operation: Operation, shares: Tensor | None = None) -> Tensor:
        """A sum over the random entries."""
        if operation is F.linear:
            kept, offsets = self.shape, 1
        else:
            kept, offsets = (*self.shape[:2], *[1] * (len(self.shape) - 2)), math.prod(self.shape[2:])
        flat = self.values.new_zeros(math.prod(kept))
        values = self.values if shares is None else self.values * shares[self.index % offsets]
        return flat.index_add(0, self.index // offsets, values).view(kept)


def spread_of(operation: Operation, weight: Any) -> Spread | None:
    """How the variance of a weight is stored; None if it is not random."""
    if not isinstance(weight, MomentTensor):
        return None
    known = weight.weight
    shared = None if known is None else known.shared_variance()
    if known is not None and shared is not None:
        return Shared(shared, known.mean.shape)
    few = known is not None and known.index is not None and known.mean.numel() >= _FEWEST_ENTRIES
    if few and (operation is F.linear or operation in _CONVOLUTIONS):
        assert known is not None
        assert known.index is not None
        return Sparse(known.index, known.random_variance(), tuple(known.mean.shape))
    if known is None or known.index is not None or known.family.relative:
        return Dense(weight.variance)
    return Dense(weight.variance, known.spread, known.family.variance)
