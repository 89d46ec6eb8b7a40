"""Sums over the non-zeros of a weight, for linear maps and convolutions with the batch innermost in memory.

An activation is (channels, depth, height, width, batch) in one flat array, so that every non-zero meets runs of
consecutive numbers. A batch must fill a vector (`BYTES`) at least. `gather` serves the forward pass and the gradient of
the input, which differ only in their plan (`leanbayes._ops.sparse_plan`). `correlate` gives the gradients of the
non-zeros. An argument may be None; the compiled code then omits the computation that needs it.
"""

from typing import Any

import numpy as np

from leanbayes._ops.compiled import kernel
from leanbayes._ops.sparse_lanes import BYTES, add, add_product, add_scaled, fetch, load, product, store, total, zeros

__all__ = ["BYTES", "correlate", "gather", "tiles"]

_COLUMNS, _BATCH = 16, 64  # a tile of outputs in `gather`, whose inputs should stay in the second cache
_RUN = 2048  # outputs that `correlate` takes at a time; two runs of them fit into the first cache

_kernel: Any = kernel()


def tiles(depth: int, height: int, width: int, batch: int) -> int:
    """Return how many tiles an output has."""
    return depth * height * -(-width // _COLUMNS) * -(-batch // _BATCH)


@_kernel
def gather(
    x: Any, y: Any, by: Any, mean: Any, other: Any, variance: Any, out: Any, spread: Any,
    pointer: Any, offset: Any, depth: Any, height: Any, width: Any, taps: Any, sizes: Any, batch: Any,
    first: Any, last: Any, first_channel: Any, last_channel: Any,
) -> None:  # fmt: skip
    """Write out = Σ μx for a range of tiles and channels, and one of two more sums with the variances.

    Without ``y`` the second sum is spread = Σ σ²x² (SSVI, Li et al. 2024, eq. 4). With it, x and y are the gradients of
    a mean and of a variance, ``by`` is the input, and out = Σ μx + 2·by·Σ σ²y.

    With ``other``, the first half of the batch meets ``mean`` and the second half meets ``other``, as mirrored draws
    need it. The batch is then even, a half fills a vector, and there are no variances.

    The plan consists of these arguments: ``pointer`` says where the non-zeros of each channel and tap begin; ``offset``
    says how far each is from the origin, in positions of x; ``depth``, ``height`` and ``width`` hold, for each position
    along an axis of the output, the origin in x and the first and last tap; ``taps`` and ``sizes`` are the extents of
    the kernel and of x.
    """
    lanes = BYTES // x.itemsize
    deep, high, wide = depth.shape[1], height.shape[1], width.shape[1]
    span = batch if other is None else batch // 2
    across, blocks = (wide + _COLUMNS - 1) // _COLUMNS, (span + _BATCH - 1) // _BATCH
    for tile in range(first, last):
        d, h = tile // blocks // across // high, tile // blocks // across % high
        column, block = tile // blocks % across * _COLUMNS, tile % blocks * _BATCH
        first_d, last_d, first_h, last_h = depth[1, d], depth[2, d], height[1, h], height[2, h]
        for channel in range(first_channel, last_channel):
            for w in range(column, min(wide, column + _COLUMNS)):
                source = ((depth[0, d] * sizes[1] + height[0, h]) * sizes[2] + width[0, w]) * batch
                target = (((channel * deep + d) * high + h) * wide + w) * batch
                first_w, last_w = width[1, w], width[2, w]
                # Whole rows of taps are one run of non-zeros.
                rows = max(1, last_h - first_h) if last_w - first_w == taps[2] else 1
                for begin in range(block, min(span, block + _BATCH), lanes):
                    i = min(begin, span - lanes)  # the last vector may overlap the one before
                    a, b = zeros(x), zeros(x)
                    for tap_d in range(first_d, last_d):
                        for tap_h in range(first_h, last_h, rows):
                            tap = ((channel * taps[0] + tap_d) * taps[1] + tap_h) * taps[2]
                            for k in range(pointer[tap + first_w], pointer[tap + (rows - 1) * taps[2] + last_w]):
                                position = source + i + np.int64(offset[k]) * batch
                                values = load(x, position)
                                a = add_scaled(a, mean[k], values)
                                if other is not None:
                                    b = add_scaled(b, other[k], load(x, position + span))
                                if variance is not None:
                                    if y is None:
                                        fetch(
                                            x, position + lanes
                                        )  # the non-zeros are scattered, so no cache foresees the next one
                                        b = add_scaled(b, variance[k], product(values, values))
                                    else:
                                        b = add_scaled(b, variance[k], load(y, position))
                    if by is not None:
                        half = load(by, target + i)
                        a = add_product(a, add(half, half), b)
                    store(out, target + i, a)
                    if other is not None:
                        store(out, target + span + i, b)
                    if spread is not None:
                        store(spread, target + i, b)


@_kernel
def correlate(
    x: Any, g: Any, q: Any, of_mean: Any, of_other: Any, of_variance: Any,
    pointer: Any, offset: Any, depth: Any, height: Any, width: Any, taps: Any, sizes: Any, batch: Any,
    reach: Any, first_channel: Any, last_channel: Any,
) -> None:  # fmt: skip
    """Add the gradients of the non-zeros of a range of channels: Σ gx for the means, Σ qx² for the variances.

    This is SSVI (Li et al. 2024), eq. 5. x is the input, and g and q are the gradients of the mean and of the variance.
    The results are added to ``of_mean`` and ``of_variance``. The plan is that of the forward pass, and ``reach`` has,
    for each axis and tap, the first and last position of the output that the tap contributes to. With ``of_other``,
    ``of_mean`` gets the sum over the first half of the batch and ``of_other`` that over the second half.
    """
    lanes = BYTES // x.itemsize
    deep, high, wide = depth.shape[1], height.shape[1], width.shape[1]
    adjoin = wide == 1 or width[0, 1] - width[0, 0] == 1  # a row of the output reads one run of the input
    columns = max(1, min(wide, _RUN // batch))
    rows = max(1, _RUN // (batch * columns))
    tiles_down, tiles_across = (high + rows - 1) // rows, (wide + columns - 1) // columns
    count = taps[0] * taps[1] * taps[2]
    for tile in range(deep * tiles_down * tiles_across):
        d, row = tile // tiles_across // tiles_down, tile // tiles_across % tiles_down * rows
        column = tile % tiles_across * columns
        for slot in range(first_channel * count, last_channel * count):
            channel, tap_d = slot // count, slot // (taps[1] * taps[2]) % taps[0]
            tap_h, tap_w = slot // taps[2] % taps[1], slot % taps[2]
            first_h, last_h = max(row, reach[1, 0, tap_h]), min(row + rows, reach[1, 1, tap_h])
            first_w, last_w = max(column, reach[2, 0, tap_w]), min(column + columns, reach[2, 1, tap_w])
            if d < reach[0, 0, tap_d] or d >= reach[0, 1, tap_d] or first_w >= last_w:
                continue
            step = last_w - first_w if adjoin and of_other is None else 1
            span = step * batch if of_other is None else batch // 2
            whole = span // lanes * lanes
            for k in range(pointer[slot], pointer[slot + 1]):
                a, b = zeros(x), zeros(x)
                rest_a, rest_b = x.dtype.type(0), x.dtype.type(0)
                for h in range(first_h, last_h):
                    for w in range(first_w, last_w, step):
                        origin = (depth[0, d] * sizes[1] + height[0, h]) * sizes[2] + width[0, w]
                        source = (origin + np.int64(offset[k])) * batch
                        target = (((channel * deep + d) * high + h) * wide + w) * batch
                        for i in range(0, whole, lanes):
                            values = load(x, source + i)
                            a = add_product(a, load(g, target + i), values)
                            if of_other is not None:
                                b = add_product(b, load(g, target + span + i), load(x, source + span + i))
                            if q is not None:
                                b = add_product(b, load(q, target + i), product(values, values))
                        for i in range(whole, span):
                            rest_a += g[target + i] * x[source + i]
                            if of_other is not None:
                                rest_b += g[target + span + i] * x[source + span + i]
                            if q is not None:
                                rest_b += q[target + i] * (x[source + i] * x[source + i])
                of_mean[k] += total(a) + rest_a
                if of_other is not None:
                    of_other[k] += total(b) + rest_b
                if of_variance is not None:
                    of_variance[k] += total(b) + rest_b
