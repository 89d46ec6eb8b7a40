"""Sums over the blocks of a weight, for linear maps and convolutions with the batch innermost in memory.

A block is a few stored weights at neighbouring output channels, one input channel and one tap. All of them meet the
same input, so the kernels load it once for `ROWS` of them (`leanbayes._ops.sparse_tiles`). `gather` serves the forward
pass, `scatter` the gradient of the input and `correlate` the gradients of the values. All three walk over the blocks by
the plan of the forward pass (`leanbayes._ops.sparse_block_plan`).

Each kernel computes one sum; those of a mean and of a variance are two calls. The examples before ``middle`` meet the
first half of the weights and the others the second half, as mirrored draws need it. If all examples meet the same
weights, ``middle`` is the size of the batch. The examples on either side, if there are any, must fill a vector.
"""

from typing import Any

import numpy as np

from leanbayes._ops.compiled import kernel
from leanbayes._ops.sparse_lanes import add, fetch, product, store
from leanbayes._ops.sparse_tiles import (
    BYTES,
    ROWS,
    add_outer,
    add_rows,
    add_totals,
    inner,
    load_lanes,
    load_rows,
    skip,
    store_rows,
    zero_rows,
)

__all__ = ["BYTES", "correlate", "correlate_tiles", "gather", "gather_tiles", "scatter"]

_COLUMNS, _BATCH = 16, 64  # a tile of outputs in `gather`, whose inputs should stay in the second cache
_RUN = (
    512  # outputs of a channel that `correlate` takes at a time, so that `ROWS` runs fit into half of the first cache
)

_kernel: Any = kernel()


def gather_tiles(depth: int, height: int, width: int, batch: int) -> int:
    """Return how many tiles `gather` makes of an output."""
    return depth * height * -(-width // _COLUMNS) * -(-batch // _BATCH)


def correlate_tiles(depth: int, height: int, width: int, batch: int, middle: int) -> int:
    """Return how many tiles `correlate` makes of an output."""
    columns = max(1, min(width, _RUN // batch))
    rows = max(1, min(height, _RUN // (batch * columns)))
    return depth * -(-height // rows) * -(-width // columns) * max(1, middle // _RUN)


@_kernel
def gather(
    x: Any, weights: Any, squared: Any, out: Any,
    size: Any, pointer: Any, offset: Any, depth: Any, height: Any, width: Any, taps: Any, sizes: Any, batch: Any,
    middle: Any, first: Any, last: Any, first_band: Any, last_band: Any,
) -> None:  # fmt: skip
    """Write out = Σ wx, or Σ wx² where ``squared`` is True, for a range of tiles and of bands of output channels.

    The weights have one row of ``size`` numbers for each block. A band is the ``size`` channels of a block. The other
    arguments are those of `leanbayes._ops.sparse_kernels.gather`, with bands in the place of channels.
    """
    lanes = BYTES // x.itemsize
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
                # Whole rows of taps are one run of blocks.
                rows = max(1, last_h - first_h) if last_w - first_w == taps[2] else 1
                for half in range(2):
                    low, high = (0, middle) if half == 0 else (middle, batch)
                    shift = half * (len(weights) // 2)
                    for begin in range(max(low, chunk), min(high, chunk + _BATCH), lanes):
                        i = min(begin, high - lanes)  # the last vector may overlap the one before
                        for part in range(0, size, ROWS):
                            sums = zero_rows(x)
                            for tap_d in range(first_d, last_d):
                                for tap_h in range(first_h, last_h, rows):
                                    tap = ((band * taps[0] + tap_d) * taps[1] + tap_h) * taps[2]
                                    for k in range(
                                        pointer[tap + first_w], pointer[tap + (rows - 1) * taps[2] + last_w]
                                    ):
                                        position = source + i + np.int64(offset[k]) * batch
                                        if part == 0:  # blocks are scattered, so no cache foresees the next column
                                            fetch(x, position + batch)
                                        values = load_lanes(x, position)
                                        if squared:
                                            values = product(values, values)
                                        sums = add_outer(sums, weights, shift + k * size + part, values)
                            store_rows(out, target + part * channel_step + i, channel_step, sums)


@_kernel
def scatter(
    g: Any, weights: Any, by: Any, out: Any, cleared: Any, gap: Any,
    size: Any, pointer: Any, offset: Any, depth: Any, height: Any, width: Any, taps: Any, sizes: Any, batch: Any,
    middle: Any, low: Any, high: Any, first_row: Any, last_row: Any,
) -> None:  # fmt: skip
    """Add Σ wg to ``out`` at the inputs that each output g has read; with a ``by`` that is not empty, add 2·by·Σ wg.

    This is done for the examples from ``low`` to ``high`` and for the inputs from ``first_row`` to ``last_row`` along
    the height, where neighbouring taps are ``gap`` apart. Before the outputs of a row, the rows of ``out`` are set to
    zero up to that which ``cleared`` names. If that is empty, ``out`` keeps what it holds.
    """
    lanes, scaled = BYTES // g.itemsize, len(by) > 0
    deep, tall, wide = depth.shape[1], height.shape[1], width.shape[1]
    channel_step, row_step, rows_in_all = deep * tall * wide * batch, sizes[2] * batch, sizes[0] * sizes[1]
    bands, channels = (len(pointer) - 1) // (taps[0] * taps[1] * taps[2]), len(out) // (rows_in_all * row_step)
    done = 0
    for line in range(deep * tall + 1):
        if len(cleared) > 0:
            reached = rows_in_all if line == deep * tall else cleared[line]
            if done < reached:
                for channel in range(channels):
                    for row in range(done, reached):
                        if first_row <= row % sizes[1] < last_row:
                            start = (channel * rows_in_all + row) * row_step
                            for position in range(start, start + row_step, batch):
                                for i in range(position + low, position + high):
                                    out[i] = 0
                done = reached
        if line == deep * tall:
            break
        d, h = line // tall, line % tall
        first_d, last_d, first_h, last_h = depth[1, d], depth[2, d], height[1, h], height[2, h]
        while first_h < last_h and height[0, h] + first_h * gap < first_row:
            first_h += 1
        while first_h < last_h and height[0, h] + (last_h - 1) * gap >= last_row:
            last_h -= 1
        if first_h >= last_h:
            continue
        for column in range(0, wide, _COLUMNS):
            for band in range(bands):
                for w in range(column, min(wide, column + _COLUMNS)):
                    source = ((depth[0, d] * sizes[1] + height[0, h]) * sizes[2] + width[0, w]) * batch
                    target = band * size * channel_step + (line * wide + w) * batch
                    first_w, last_w = width[1, w], width[2, w]
                    rows = last_h - first_h if last_w - first_w == taps[2] else 1
                    for half in range(2):
                        bottom, top = (low, min(high, middle)) if half == 0 else (max(low, middle), high)
                        shift = half * (len(weights) // 2)
                        for begin in range(bottom, top, lanes):
                            i = min(begin, top - lanes)
                            for part in range(0, size, ROWS):
                                values = load_rows(g, target + part * channel_step + i, channel_step)
                                for tap_d in range(first_d, last_d):
                                    for tap_h in range(first_h, last_h, rows):
                                        tap = ((band * taps[0] + tap_d) * taps[1] + tap_h) * taps[2]
                                        for k in range(
                                            pointer[tap + first_w], pointer[tap + (rows - 1) * taps[2] + last_w]
                                        ):
                                            position = source + i + np.int64(offset[k]) * batch
                                            if part == 0:
                                                fetch(out, position + batch)
                                            sums = inner(values, weights, shift + k * size + part)
                                            if i < begin:  # the vector before has added the first lanes
                                                sums = skip(sums, begin - i)
                                            if scaled:
                                                factor = load_lanes(by, position)
                                                sums = product(sums, add(factor, factor))
                                            store(out, position, add(load_lanes(out, position), sums))


@_kernel
def correlate(
    x: Any, g: Any, squared: Any, of: Any,
    size: Any, pointer: Any, offset: Any, depth: Any, height: Any, width: Any, taps: Any, sizes: Any, batch: Any,
    reach: Any, middle: Any, first: Any, last: Any, first_band: Any, last_band: Any,
) -> None:  # fmt: skip
    """Add Σ gx, or Σ gx² where ``squared`` is True, for a range of tiles and bands, to ``of``, a row for each block.

    The gradients g of a tile are copied to one place for each part of a band, because channels lie a power of two
    apart in most networks, and so would displace each other from the cache.
    """
    lanes = BYTES // x.itemsize
    deep, tall, wide = depth.shape[1], height.shape[1], width.shape[1]
    channel_step, count = deep * tall * wide * batch, taps[0] * taps[1] * taps[2]
    columns = max(1, min(wide, _RUN // batch))
    rows = max(1, min(tall, _RUN // (batch * columns)))
    chunks, halves = max(1, middle // _RUN), 1 if middle == batch else 2
    down, across = (tall + rows - 1) // rows, (wide + columns - 1) // columns
    block = ROWS * rows * columns * ((middle + chunks - 1) // chunks)
    near = np.empty(halves * block, g.dtype)
    apart = width[0, 1] - width[0, 0] if wide > 1 else 1
    adjoin = halves == 1 and chunks == 1 and apart == 1
    for tile in range(first, last):
        d, row = tile // chunks // across // down, tile // chunks // across % down * rows
        column, chunk = tile // chunks % across * columns, tile % chunks
        begin, end = chunk * middle // chunks, (chunk + 1) * middle // chunks
        length, last_row, last_column = end - begin, min(tall, row + rows), min(wide, column + columns)
        line = columns * length
        plane = rows * line
        together = last_column - column if adjoin else 1
        for band in range(first_band, last_band):
            for part in range(0, size, ROWS):
                for half in range(halves):
                    for h in range(row, last_row):
                        for w in range(column, last_column, together):
                            source = (band * size + part) * channel_step + ((d * tall + h) * wide + w) * batch
                            source += half * middle + begin
                            target = half * block + (h - row) * line + (w - column) * length
                            for place in range(0, together * length, lanes):
                                i = min(place, together * length - lanes)
                                store_rows(near, target + i, plane, load_rows(g, source + i, channel_step))
                for tap in range(count):
                    slot = band * count + tap
                    if pointer[slot] == pointer[slot + 1]:
                        continue
                    tap_d, tap_h, tap_w = tap // (taps[1] * taps[2]), tap // taps[2] % taps[1], tap % taps[2]
                    if d < reach[0, 0, tap_d] or d >= reach[0, 1, tap_d]:
                        continue
                    first_h, last_h = max(row, reach[1, 0, tap_h]), min(last_row, reach[1, 1, tap_h])
                    first_w, last_w = max(column, reach[2, 0, tap_w]), min(last_column, reach[2, 1, tap_w])
                    if first_h >= last_h or first_w >= last_w:
                        continue
                    # All vectors of a row are one run if they lie at equal steps: side by side, or one at each column.
                    one_run = adjoin or length == lanes
                    step, run = last_w - first_w if one_run else 1, (last_w - first_w if adjoin else 1) * length
                    vectors = last_w - first_w if length == lanes and not adjoin else run // lanes
                    x_step, rest = (
                        apart * batch if length == lanes and not adjoin else lanes,
                        run - run // lanes * lanes,
                    )
                    for k in range(pointer[slot], pointer[slot + 1]):
                        for half in range(halves):
                            sums = zero_rows(x)
                            for h in range(first_h, last_h):
                                origin = (depth[0, d] * sizes[1] + height[0, h]) * sizes[2] + np.int64(offset[k])
                                for w in range(first_w, last_w, step):
                                    source = (origin + width[0, w]) * batch + half * middle + begin
                                    target = half * block + (h - row) * line + (w - column) * length
                                    for vector in range(vectors):
                                        values = load_lanes(x, source + vector * x_step)
                                        if squared:
                                            values = product(values, values)
                                        rows_of_g = load_rows(near, target + vector * lanes, plane)
                                        sums = add_rows(sums, rows_of_g, values)
                                    if rest > 0:  # the last vector overlaps the one before
                                        values = skip(load_lanes(x, source + run - lanes), lanes - rest)
                                        if squared:
                                            values = product(values, values)
                                        sums = add_rows(sums, load_rows(near, target + run - lanes, plane), values)
                            add_totals(of, half * (len(of) // 2) + k * size + part, sums)
