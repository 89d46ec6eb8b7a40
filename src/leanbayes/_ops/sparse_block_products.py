"""Products by weights in blocks: shares the work of `leanbayes._ops.sparse_block_kernels` out among threads.

Activations have the shape (channels, positions, batch) or (channels, …, batch). All examples of a batch meet the same
values, or each half of an even batch meets its own.
"""

from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes._ops.sparse_block_plan import BlockPlan
from leanbayes._ops.threads import cuts, share_out

__all__ = ["input_sums", "output_sums", "value_sums"]

_SMALL = 2**20  # products that one thread finishes before a second one has begun
_PIECES = 4  # pieces of work for each thread, so that none waits long for another
_FEW_BANDS = 16  # below it, threads share the positions of the gradients of values, and not the bands
_SHARES = 8  # of the positions, each with sums of its own; their number must not depend on the threads


def output_sums(plan: BlockPlan, x: Tensor, *values: Tensor, squared: bool = False) -> Tensor:
    """Return Σ wx, or Σ wx², of shape (outputs, positions, batch), for one or two tensors of values."""
    from leanbayes._ops import sparse_block_kernels as kernels  # numba takes half a second

    batch, missing = x.shape[-1], kernels.BYTES // x.itemsize - x.shape[-1]
    if missing > 0:  # the kernel loads whole vectors
        return output_sums(plan, F.pad(x, (0, missing)), *values, squared=squared)[..., :-missing].contiguous()
    positions = plan.geometry.positions
    out = x.new_empty(plan.geometry.outputs, prod(positions), batch)
    number = _number_of_pieces(plan, batch)
    tiles = cuts(kernels.gather_tiles(*positions, batch), number)
    bands = cuts(plan.bands, -(-number // max(1, len(tiles))))
    arguments = _flat(x), _ordered(plan, values), squared, _flat(out), *plan.arguments, batch, batch // len(values)
    share_out(lambda piece: kernels.gather(*arguments, *piece), [(*t, *b) for t in tiles for b in bands])
    return out


def input_sums(
    plan: BlockPlan, g: Tensor, *values: Tensor, by: Tensor | None = None, onto: Tensor | None = None
) -> Tensor:
    """Return Σ wg at each input, of shape (inputs, …, batch).

    Args:
        plan: the walk over the blocks.
        g: the gradient of the outputs.
        values: the values that all examples meet, or those of either half.
        by: an input; the result is then 2·by·Σ wg.
        onto: the tensor that the sums are added to, which is returned.
    """
    from leanbayes._ops import sparse_block_kernels as kernels

    batch, lanes = g.shape[-1], kernels.BYTES // g.itemsize
    if batch < lanes:
        padded = [None if tensor is None else F.pad(tensor, (0, lanes - batch)) for tensor in (g, by, onto)]
        assert padded[0] is not None
        return input_sums(plan, padded[0], *values, by=padded[1], onto=padded[2])[..., :batch].contiguous()
    sizes, middle = plan.geometry.sizes, batch // len(values)
    out = g.new_empty(plan.geometry.inputs, *sizes, batch) if onto is None else onto
    arguments = (
        *(_flat(g), _ordered(plan, values), _flat(g.new_empty(0) if by is None else by), _flat(out)),
        *(plan.cleared if onto is None else plan.cleared[:0], plan.geometry.axes[1].dilation),
        *(*plan.arguments, batch, middle),
    )
    threads = 1 if _number_of_pieces(plan, batch) == 1 else torch.get_num_threads()
    rows = cuts(sizes[1], threads)
    ends = [0, batch]
    if len(rows) < threads:  # too few rows, as in a linear map: the threads share the examples as well
        vectors = cuts(middle // lanes, -(-threads // (len(rows) * len(values))))
        starts = [first * lanes for first, _ in vectors]
        ends = [*(half * middle + start for half in range(len(values)) for start in starts), batch]
    pieces = [(*example, *row) for example in pairwise(ends) for row in rows]
    share_out(lambda piece: kernels.scatter(*arguments, *piece), pieces)
    return out


def value_sums(
    plan: BlockPlan, x: Tensor, g: Tensor, *, squared: bool = False, halves: bool = False
) -> tuple[Tensor, ...]:
    """Return Σ gx, or Σ gx², for each stored value: over the batch, or over either half of it."""
    from leanbayes._ops import sparse_block_kernels as kernels

    batch = x.shape[-1]
    missing = kernels.BYTES // x.itemsize - batch
    if missing > 0:
        return value_sums(plan, F.pad(x, (0, missing)), F.pad(g, (0, missing)), squared=squared)
    middle, number = batch // (2 if halves else 1), _number_of_pieces(plan, batch)
    tiles = kernels.correlate_tiles(*plan.geometry.positions, batch, middle)
    by_position = plan.bands < _FEW_BANDS and number > 1
    sums = x.new_zeros(_SHARES if by_position else 1, 2, len(plan.order))
    work: list[Any]
    if by_position:
        work = [(_flat(sums[share]), *tile, 0, plan.bands) for share, tile in enumerate(cuts(tiles, _SHARES))]
    else:
        bands = cuts(plan.bands, 1 if number == 1 else torch.get_num_threads())
        work = [(_flat(sums[0]), 0, tiles, *band) for band in bands]
    source, gradient = _flat(x), _flat(g)

    def run(piece: Any) -> None:
        of, *where = piece
        kernels.correlate(source, gradient, squared, of, *plan.arguments, batch, plan.reach, middle, *where)

    share_out(run, work)
    results = torch.empty_like(sums[0])
    results[:, plan.order] = sums.sum(0) if by_position else sums[0]
    return tuple(results) if halves else (results[0],)


def _number_of_pieces(plan: BlockPlan, batch: int) -> int:
    small = len(plan.order) * prod(plan.geometry.positions) * batch < _SMALL
    return 1 if small else _PIECES * torch.get_num_threads()


def _ordered(plan: BlockPlan, values: tuple[Tensor, ...]) -> Any:
    return _flat(torch.cat([v.detach()[plan.order] for v in values]))


def _flat(tensor: Tensor) -> Any:
    return np.asarray(tensor.detach()).reshape(-1)
