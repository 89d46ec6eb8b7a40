"""Mean and variance of the output of a layer with a sparse random weight and a random input, in one sweep each.

With a weight of mean μ and variance σ², and an input of mean x and variance v, the output has the mean Σ μx and the
variance Σ (μ² + σ²)v + Σ σ²x². Activations are (channels, depth, height, width, batch) in one flat array. The arguments
of a plan are those of `leanbayes._ops.sparse_kernels.gather` and `leanbayes._ops.sparse_block_kernels.gather`.
"""

from typing import Any

import numpy as np

from leanbayes._ops.compiled import kernel
from leanbayes._ops.sparse_lanes import BYTES, add, add_scaled, fetch, load, product, store, zeros
from leanbayes._ops.sparse_tiles import BYTES as TILE_BYTES
from leanbayes._ops.sparse_tiles import ROWS, add_outer, load_lanes, store_rows, zero_rows

__all__ = ["BYTES", "TILE_BYTES", "gather", "gather_blocks", "tiles"]

_COLUMNS, _BATCH = 16, 64  # a tile of outputs, whose inputs should stay in the second cache

_kernel: Any = kernel()


def tiles(depth: int, height: int, width: int, batch: int) -> int:
    """Return how many tiles an output has."""
    return depth * height * -(-width // _COLUMNS) * -(-batch // _BATCH)


@_kernel
def gather(
    x: Any, v: Any, mean: Any, second: Any, variance: Any, out: Any, spread: Any,
    pointer: Any, offset: Any, depth: Any, height: Any, width: Any, taps: Any, sizes: Any, batch: Any,
    first: Any, last: Any, first_channel: Any, last_channel: Any,
) -> None:  # fmt: skip
    """Write out = Σ μx and spread = Σ (μ² + σ²)v + Σ σ²x² for a range of tiles and channels.

    ``second`` holds μ² + σ². Without ``mean`` the means are left out, and without ``variance`` the last sum.
    """
    lanes = BYTES // x.itemsize
    deep, high, wide = depth.shape[1], height.shape[1], width.shape[1]
    across, blocks = (wide + _COLUMNS - 1) // _COLUMNS, (batch + _BATCH - 1) // _BATCH
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
                for begin in range(block, min(batch, block + _BATCH), lanes):
                    i = min(begin, batch - lanes)  # the last vector may overlap the one before
                    a, b, c = zeros(x), zeros(x), zeros(x)  # three chains, because each sum waits for the one before
                    for tap_d in range(first_d, last_d):
                        for tap_h in range(first_h, last_h, rows):
                            tap = ((channel * taps[0] + tap_d) * taps[1] + tap_h) * taps[2]
                            for k in range(pointer[tap + first_w], pointer[tap + (rows - 1) * taps[2] + last_w]):
                                position = source + i + np.int64(offset[k]) * batch
                                fetch(v, position + lanes)  # the non-zeros are scattered, so no cache foresees them
                                b = add_scaled(b, second[k], load(v, position))
                                if variance is not None:
                                    fetch(x, position + lanes)
                                    values = load(x, position)
                                    if mean is not None:
                                        a = add_scaled(a, mean[k], values)
                                    c = add_scaled(c, variance[k], product(values, values))
                                elif mean is not None:
                                    a = add_scaled(a, mean[k], load(x, position))
                    if mean is not None:
                        store(out, target + i, a)
                    store(spread, target + i, add(b, c))


@_kernel
def gather_blocks(
    x: Any, v: Any, second: Any, variance: Any, spread: Any,
    size: Any, pointer: Any, offset: Any, depth: Any, height: Any, width: Any, taps: Any, sizes: Any, batch: Any,
    first: Any, last: Any, first_band: Any, last_band: Any,
) -> None:  # fmt: skip
    """Write spread = Σ (μ² + σ²)v + Σ σ²x² for a range of tiles and of bands of output channels.

    The sums of the means are a sweep of their own, because the registers hold one tile. ``second`` and ``variance``
    have ``size`` numbers for each block; without ``variance`` the last sum is left out.
    """
    lanes = TILE_BYTES // x.itemsize
    deep, tall, wide = depth.shape[1], height.shape[1], width.shape[1]
    across, chunks = (wide + _COLUMNS - 1) // _COLUMNS, (batch + _BATCH - 1) // _BATCH
    channel_step = deep * tall * wide * batch
    for tile in range(first, last):
        d, h = tile // chunks // across // tall, tile // chunks // across % tall
        column, chunk = tile // chunks % across * _COLUMNS, tile % chunks * _BATCH
        first_d, last_d, first_h, last_h = depth[1, d], depth[2, d], height[1, h], height[2, h]
        for band in range(first_band, last_band):
            for w in range(column, min(wide, column + _COLUMNS)):
                source = ((depth[0, d] * sizes[1] + height[0, h]) * sizes[2] + width[0, w]) * batch
                target = band * size * channel_step + ((d * tall + h) * wide + w) * batch
                first_w, last_w = width[1, w], width[2, w]
                rows = max(1, last_h - first_h) if last_w - first_w == taps[2] else 1
                for begin in range(chunk, min(batch, chunk + _BATCH), lanes):
                    i = min(begin, batch - lanes)
                    for part in range(0, size, ROWS):
                        sums = zero_rows(x)
                        for tap_d in range(first_d, last_d):
                            for tap_h in range(first_h, last_h, rows):
                                tap = ((band * taps[0] + tap_d) * taps[1] + tap_h) * taps[2]
                                for k in range(pointer[tap + first_w], pointer[tap + (rows - 1) * taps[2] + last_w]):
                                    position = source + i + np.int64(offset[k]) * batch
                                    if part == 0:
                                        fetch(v, position + batch)
                                    sums = add_outer(sums, second, k * size + part, load_lanes(v, position))
                                    if variance is not None:
                                        if part == 0:
                                            fetch(x, position + batch)
                                        values = load_lanes(x, position)
                                        sums = add_outer(sums, variance, k * size + part, product(values, values))
                        store_rows(spread, target + part * channel_step + i, channel_step, sums)
