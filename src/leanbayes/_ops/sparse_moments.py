"""Mean and variance of linear maps and convolutions by a sparse random weight, if the input is random as well.

For independent inputs of mean x and variance v, and stored weights of mean μ and variance σ², the output has the mean
Σ μx and the variance Σ (μ² + σ²)v + Σ σ²x², without the bias. Only forward: nothing here records gradients. Activations
have the shape (channels, …, batch) in contiguous memory, as in `leanbayes._ops.sparse_products`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes._ops.innermost_moments import sum_windows
from leanbayes._ops.sparse_block_plan import BlockPlan, block_plan_of, kernel_block
from leanbayes._ops.sparse_block_products import output_sums
from leanbayes._ops.sparse_plan import Axis, Geometry, Walk, plan_for, plan_of
from leanbayes._ops.sparse_products import counted
from leanbayes._ops.threads import cuts, share_out

__all__ = ["Stored", "boxed_variance", "fits_box", "output_moments"]

_SMALL = 2**19  # products that one thread finishes before a second one has begun
_PIECES = 4  # pieces of work for each thread, so that none waits long for another


@dataclass(frozen=True)
class Stored:
    """The stored entries of a weight.

    Attributes:
        index: Their sorted flat positions.
        mean: μ.
        variance: σ², or None if the weight is not random.
    """

    index: Tensor
    mean: Tensor
    variance: Tensor | None

    @property
    def second(self) -> Tensor:
        """μ² + σ²."""
        square = self.mean.square()
        return square if self.variance is None else square + self.variance


def output_moments(x: Tensor, v: Tensor, weight: Stored, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """Return Σ μx and Σ (μ² + σ²)v + Σ σ²x², of shape (outputs, positions, batch).

    >>> weight = Stored(torch.tensor([1]), torch.tensor([3.0]), torch.tensor([1.0]))
    >>> mean, variance = output_moments(
    ...     torch.tensor([[5.0], [2.0]]), torch.tensor([[1.0], [10.0]]), weight, Geometry(1, 2, 1, (Axis(1),) * 3)
    ... )
    >>> mean.item(), variance.item()  # 3·2, and (9 + 1)·10 + 1·4
    (6.0, 104.0)
    """
    with counted(2 * len(weight.index) * prod(geometry.positions) * x.shape[-1] * (2 + (weight.variance is not None))):
        return _sums(x, v, weight.mean, weight.second, weight.variance, weight.index, geometry)


def fits_box(geometry: Geometry) -> bool:
    """Tell whether `boxed_variance` takes this layer: a convolution of images in one group."""
    return geometry.groups == 1 and geometry.axes[0] == Axis(1)


def boxed_variance(x: Tensor, v: Tensor, weight: Stored, shares: Tensor, geometry: Geometry) -> Tensor:
    """Return the variance with kernels that are even over their window, of shape (outputs, positions, batch).

    Each kernel of μ² + σ², and of σ², becomes Σ_k s_k K_oik / taps at all its offsets. The result is then a product
    by a sparse matrix at each position and a sum over windows. The sum comes first where a stride leaves fewer
    positions.

    Args:
        x: The mean of the input.
        v: Its variance.
        weight: The weight.
        shares: s, for each offset.
        geometry: The layer, for which `fits_box` holds.
    """
    taps, (_, rows, columns) = prod(geometry.taps), geometry.axes
    fold: _Fold = plan_for(weight.index, geometry, _fold)
    share = shares / taps
    second = fold.sums(weight.second, share)
    variance = None if weight.variance is None else fold.sums(weight.variance, share)
    strided = rows.stride > 1 or columns.stride > 1
    if strided:
        squares = None if variance is None else sum_windows(x.square(), rows, columns)
        v = sum_windows(v, rows, columns)
    one = Geometry(geometry.outputs, geometry.inputs, 1, (Axis(1), Axis(v.shape[-3]), Axis(v.shape[-2])))
    if not strided:
        out = _sums(x, v, None, second, variance, fold.index, one)[1]
        if taps == 1 and geometry.positions == geometry.sizes:
            return out
        return sum_windows(out.view(geometry.outputs, *v.shape[-3:]), rows, columns).flatten(1, 2)
    out = _sums(v, v, None, second, None, fold.index, one)[1]
    if squares is not None and variance is not None:
        out.add_(_sums(squares, squares, None, variance, None, fold.index, one)[1])
    return out


@dataclass(frozen=True)
class _Fold:
    """Which entries of a weight (outputs, inputs, …offsets) have one output and one input.

    Attributes:
        index: The sorted flat positions in a weight (outputs, inputs).
        place: For each entry of the weight, where its sum is in the index.
        offset: For each entry of the weight, its offset.
    """

    index: Tensor
    place: Tensor
    offset: Tensor

    def sums(self, values: Tensor, shares: Tensor) -> Tensor:
        """Return Σ_k s_k values for each output and input."""
        return values.new_zeros(len(self.index)).index_add_(0, self.place, values * shares[self.offset])


def _fold(index: Tensor, geometry: Geometry) -> _Fold:
    taps = prod(geometry.taps)
    folded, place = torch.unique(index.long() // taps, sorted=True, return_inverse=True)
    return _Fold(folded, place, index.long() % taps)


def _sums(
    x: Tensor,
    v: Tensor,
    mean: Tensor | None,
    second: Tensor,
    variance: Tensor | None,
    index: Tensor,
    geometry: Geometry,
) -> tuple[Tensor, Tensor]:
    """Return Σ μx and Σ second·v + Σ variance·x²; the first is the second if there is no ``mean``."""
    if kernel_block(index, geometry):
        plan = block_plan_of(index, geometry)
        spread = _block_sums(plan, x, v, second, variance)
        return spread if mean is None else output_sums(plan, x, mean), spread
    walk = plan_of(index, geometry).forward
    return _single_sums(walk, geometry, x, v, mean, second, variance)


def _single_sums(
    walk: Walk, geometry: Geometry, x: Tensor, v: Tensor, mean: Tensor | None, second: Tensor, variance: Tensor | None
) -> tuple[Tensor, Tensor]:
    from leanbayes._ops import sparse_moment_kernels as kernels  # numba takes half a second

    batch, missing = x.shape[-1], kernels.BYTES // x.itemsize - x.shape[-1]
    if batch and missing > 0:  # the kernel loads whole vectors
        padded = F.pad(x, (0, missing)), F.pad(v, (0, missing))
        out, spread = _single_sums(walk, geometry, *padded, mean, second, variance)
        return out[..., :batch].contiguous(), spread[..., :batch].contiguous()
    spread = x.new_empty(geometry.outputs, prod(geometry.positions), batch)
    out = spread if mean is None else torch.empty_like(spread)
    ordered = [None if values is None else _flat(values.detach()[walk.order]) for values in (mean, second, variance)]
    arguments = (_flat(x), _flat(v), *ordered, None if mean is None else _flat(out), _flat(spread))
    _share(
        lambda piece: kernels.gather(*arguments, *walk.arguments, batch, *piece),
        kernels.tiles(*geometry.positions, batch),
        geometry.outputs,
        len(walk.order) * prod(geometry.positions) * batch,
    )
    return out, spread


def _block_sums(plan: BlockPlan, x: Tensor, v: Tensor, second: Tensor, variance: Tensor | None) -> Tensor:
    from leanbayes._ops import sparse_moment_kernels as kernels

    batch, missing = x.shape[-1], kernels.TILE_BYTES // x.itemsize - x.shape[-1]
    if batch and missing > 0:
        padded = F.pad(x, (0, missing)), F.pad(v, (0, missing))
        return _block_sums(plan, *padded, second, variance)[..., :batch].contiguous()
    spread = x.new_empty(plan.geometry.outputs, prod(plan.geometry.positions), batch)
    ordered = [None if values is None else _flat(values.detach()[plan.order]) for values in (second, variance)]
    arguments = (_flat(x), _flat(v), *ordered, _flat(spread))
    _share(
        lambda piece: kernels.gather_blocks(*arguments, *plan.arguments, batch, *piece),
        kernels.tiles(*plan.geometry.positions, batch),
        plan.bands,
        len(plan.order) * prod(plan.geometry.positions) * batch,
    )
    return spread


def _share(work: Callable[[Any], None], tiles: int, channels: int, products: int) -> None:
    """Share tiles and channels out among threads."""
    pieces = 1 if products < _SMALL else _PIECES * torch.get_num_threads()
    of_tiles = cuts(tiles, pieces)
    of_channels = cuts(channels, -(-pieces // max(1, len(of_tiles))))
    share_out(work, [(*tile, *channel) for tile in of_tiles for channel in of_channels])


def _flat(tensor: Tensor) -> Any:
    return np.asarray(tensor.detach()).reshape(-1)
