"""Sums over the stored weights on a GPU: the kernels of `leanbayes._ops.sparse_triton`, in Triton.

A plan (`leanbayes._ops.sparse_triton_plan`) puts 16 neighbouring targets into a row. A row has columns: each reads one
source channel at one offset, and holds 16 packed weights, of which those that are not stored are zero. So a row times a
tile of positions is a product of small matrices, (16 × columns) by (columns × tile), as tensor cores take it. Each
source number that is loaded serves 16 targets.

A tile is a range of the numbers 0 … batch·positions, with the batch or the last axis of space innermost, as the tensors
lie in memory. The batch may have several parts of equal size with a weight each, as mirrored draws need it. All sums
are taken in float32. `gather` and `correlate` write each number once, so their results do not depend on the order in
which a GPU works. `scatter` adds by atomics, whose order is open.

These arguments mean the same in all three kernels: ``batch`` is the number of examples in a part; ``positions`` is
the product of the extents that tiles run over, of which ``high`` and ``wide`` are the last two; ``step`` is the gap
between positions in the source, and ``shift`` is how far each column is from there; ``columns`` is the number
of all columns, which is the distance of two parts in packed weights; ``x_c``, ``x_d``, ``x_h``, ``x_w``, ``x_b`` are
strides; and ``checked`` is the number of axes along which a column may read outside of the source.
"""

# mypy: disable-error-code="no-untyped-def"
# Triton compiles these functions from their source, and looks up whatever stands in an annotation.

import triton
import triton.language as tl

__all__ = ["TARGETS", "correlate", "gather", "scatter"]

TARGETS = tl.constexpr(16)  # of a row: the least extent of a product on tensor cores


@triton.jit
def _unravel(n, batch, positions, high, wide, innermost: tl.constexpr):
    """Return example, depth, height and width of the numbers of a tile."""
    if innermost:
        b = n % batch
        p = n // batch
    else:
        b = n // positions
        p = n % positions
    return b, p // (high * wide), p // wide % high, p % wide


@triton.jit
def _inside(mask, d, h, w, deep, high, wide, checked: tl.constexpr):
    """Return the mask without what lies outside of a tensor along the last ``checked`` axes of three."""
    if checked > 0:
        mask = mask & (w >= 0) & (w < wide)
    if checked > 1:
        mask = mask & (h >= 0) & (h < high)
    if checked > 2:
        mask = mask & (d >= 0) & (d < deep)
    return mask


@triton.jit
def _square(values):
    wide = values.to(tl.float32)
    return (wide * wide).to(values.dtype)


@triton.jit
def _product(a, b, total, precision: tl.constexpr, widen: tl.constexpr):
    if widen:  # Triton's interpreter has no products of bfloat16; in float32 each of them is exact
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, total, input_precision=precision)


@triton.jit
def gather(
    x, y, by, mean, variance, out, spread,
    pointer, channel, shift_d, shift_h, shift_w,
    rows, groups, tiles, columns, targets, batch, positions,
    high, wide, gap_d, gap_h, gap_w, step_d, step_h, step_w,
    out_deep, out_high, out_wide, x_deep, x_high, x_wide,
    x_c, x_d, x_h, x_w, x_b, out_c, out_d, out_h, out_w, out_b,
    two: tl.constexpr, squares: tl.constexpr, innermost: tl.constexpr, checked: tl.constexpr,
    block_k: tl.constexpr, block_n: tl.constexpr, precision: tl.constexpr, widen: tl.constexpr,
):  # fmt: skip
    """Write out = Σ μx for each row and tile, and with ``two`` one of two more sums with the variances.

    With ``squares`` the second sum is spread = Σ σ²x² (SSVI, Li et al. 2024, eq. 4). Otherwise, x and y are the
    gradients of a mean and of a variance, ``by`` is the input, and out = Σ μx + 2·by·Σ σ²y.

    Targets of one remainder class lie ``gap`` apart, which is the stride where the gradient of the input is computed.
    Each class has ``groups`` rows, one for 16 channels.
    """
    program = tl.program_id(0)
    row, tile = program % rows, program // rows
    part, tile = tile // tiles, tile % tiles
    residue, group = row // groups, row % groups
    n = tile * block_n + tl.arange(0, block_n)
    b, d, h, w = _unravel(n, batch, positions, high, wide, innermost)
    b += part * batch
    at_d, at_h, at_w = (d * step_d)[None, :], (h * step_h)[None, :], (w * step_w)[None, :]
    origin = b[None, :] * x_b + at_d * x_d + at_h * x_h + at_w * x_w
    alive = (n < batch * positions)[None, :]
    r = tl.arange(0, TARGETS)[:, None]
    a = tl.zeros((TARGETS, block_n), tl.float32)
    z = tl.zeros((TARGETS, block_n), tl.float32)
    last = tl.load(pointer + row + 1)
    for start in range(tl.load(pointer + row), last, block_k):
        k = start + tl.arange(0, block_k)
        real = k < last
        by_d = tl.load(shift_d + k, mask=real, other=0)[:, None]
        by_h = tl.load(shift_h + k, mask=real, other=0)[:, None]
        by_w = tl.load(shift_w + k, mask=real, other=0)[:, None]
        c = tl.load(channel + k, mask=real, other=0)[:, None]
        address = origin + c * x_c + by_d * x_d + by_h * x_h + by_w * x_w
        mask = real[:, None] & alive
        mask = _inside(mask, at_d + by_d, at_h + by_h, at_w + by_w, x_deep, x_high, x_wide, checked)
        values = tl.load(x + address, mask=mask, other=0.0)
        packed = (part * columns + k)[None, :] * TARGETS + r
        a = _product(tl.load(mean + packed, mask=real[None, :], other=0.0), values, a, precision, widen)
        if two:
            values = _square(values) if squares else tl.load(y + address, mask=mask, other=0.0)
            z = _product(tl.load(variance + packed, mask=real[None, :], other=0.0), values, z, precision, widen)
    d = (d * gap_d + residue // (gap_h * gap_w))[None, :]
    h = (h * gap_h + residue // gap_w % gap_h)[None, :]
    w = (w * gap_w + residue % gap_w)[None, :]
    o = group * TARGETS + r
    mask = _inside((o < targets) & alive, d, h, w, out_deep, out_high, out_wide, 3)
    address = o * out_c + b[None, :] * out_b + d * out_d + h * out_h + w * out_w
    if two:
        if squares:
            tl.store(spread + address, z.to(spread.dtype.element_ty), mask=mask)
        else:
            a += 2.0 * tl.load(by + address, mask=mask, other=0.0).to(tl.float32) * z
    tl.store(out + address, a.to(out.dtype.element_ty), mask=mask)


@triton.jit
def scatter(
    g, q, x, mean, variance, out,
    pointer, channel, shift_d, shift_h, shift_w,
    rows, tiles, columns, targets, batch, positions,
    high, wide, step_d, step_h, step_w, x_deep, x_high, x_wide,
    x_c, x_d, x_h, x_w, x_b, g_c, g_d, g_h, g_w, g_b,
    two: tl.constexpr, innermost: tl.constexpr, checked: tl.constexpr,
    block_k: tl.constexpr, block_n: tl.constexpr, precision: tl.constexpr, widen: tl.constexpr,
):  # fmt: skip
    """Add the gradient of the input to ``out``, which has the strides of x: Σ μg, and with ``two`` also 2x·Σ σ²q.

    The plan is that of the forward pass. Where whole blocks of 16 outputs are stored, a program needs 16 rows of g once
    for all of its columns, whereas `gather` would multiply by many zeros.
    """
    program = tl.program_id(0)
    row, tile = program % rows, program // rows
    part, tile = tile // tiles, tile % tiles
    n = tile * block_n + tl.arange(0, block_n)
    b, d, h, w = _unravel(n, batch, positions, high, wide, innermost)
    b = (b + part * batch)[None, :]
    alive = (n < batch * positions)[None, :]
    r = tl.arange(0, TARGETS)
    o = (row * TARGETS + r)[:, None]
    address = o * g_c + b * g_b + d[None, :] * g_d + h[None, :] * g_h + w[None, :] * g_w
    gradient = tl.load(g + address, mask=(o < targets) & alive, other=0.0)
    if two:
        second = tl.load(q + address, mask=(o < targets) & alive, other=0.0)
    at_d, at_h, at_w = (d * step_d)[None, :], (h * step_h)[None, :], (w * step_w)[None, :]
    origin = b * x_b + at_d * x_d + at_h * x_h + at_w * x_w
    last = tl.load(pointer + row + 1)
    for start in range(tl.load(pointer + row), last, block_k):
        k = start + tl.arange(0, block_k)
        real = k < last
        by_d = tl.load(shift_d + k, mask=real, other=0)[:, None]
        by_h = tl.load(shift_h + k, mask=real, other=0)[:, None]
        by_w = tl.load(shift_w + k, mask=real, other=0)[:, None]
        c = tl.load(channel + k, mask=real, other=0)[:, None]
        place = origin + c * x_c + by_d * x_d + by_h * x_h + by_w * x_w
        mask = real[:, None] & alive
        mask = _inside(mask, at_d + by_d, at_h + by_h, at_w + by_w, x_deep, x_high, x_wide, checked)
        packed = (part * columns + k)[:, None] * TARGETS + r[None, :]
        a = tl.zeros((block_k, block_n), tl.float32)
        a = _product(tl.load(mean + packed, mask=real[:, None], other=0.0), gradient, a, precision, widen)
        if two:
            z = tl.zeros((block_k, block_n), tl.float32)
            z = _product(tl.load(variance + packed, mask=real[:, None], other=0.0), second, z, precision, widen)
            a += 2.0 * tl.load(x + place, mask=mask, other=0.0).to(tl.float32) * z
        tl.atomic_add(out + place, a, mask=mask)


@triton.jit
def correlate(
    x, g, q, of_mean, of_variance,
    pointer, channel, shift_d, shift_h, shift_w, chunk_row, chunk_start,
    chunks, splits, steps, columns, targets, batch, positions,
    high, wide, step_d, step_h, step_w, x_deep, x_high, x_wide,
    x_c, x_d, x_h, x_w, x_b, g_c, g_d, g_h, g_w, g_b,
    two: tl.constexpr, innermost: tl.constexpr, checked: tl.constexpr,
    block_k: tl.constexpr, block_n: tl.constexpr, precision: tl.constexpr, widen: tl.constexpr,
):  # fmt: skip
    """Write the gradients of packed weights: Σ gx, and with ``two`` also Σ qx² (SSVI, Li et al. 2024, eq. 5).

    A program takes one chunk of a row's columns and ``steps`` tiles. The results of the ``splits`` programs that share
    a chunk and a part lie in slices of ``of_mean`` and ``of_variance``, which are (parts, splits, columns, 16).
    """
    program = tl.program_id(0)
    chunk, slot = program % chunks, program // chunks
    part, split = slot // splits, slot % splits
    row = tl.load(chunk_row + chunk)
    k = tl.load(chunk_start + chunk) + tl.arange(0, block_k)
    real = k < tl.load(pointer + row + 1)
    by_d = tl.load(shift_d + k, mask=real, other=0)[None, :]
    by_h = tl.load(shift_h + k, mask=real, other=0)[None, :]
    by_w = tl.load(shift_w + k, mask=real, other=0)[None, :]
    c = tl.load(channel + k, mask=real, other=0)[None, :]
    offset = c * x_c + by_d * x_d + by_h * x_h + by_w * x_w
    o = row * TARGETS + tl.arange(0, TARGETS)[:, None]
    a = tl.zeros((TARGETS, block_k), tl.float32)
    z = tl.zeros((TARGETS, block_k), tl.float32)
    for step in range(steps):
        n = (split * steps + step) * block_n + tl.arange(0, block_n)
        alive = n < batch * positions
        b, d, h, w = _unravel(n, batch, positions, high, wide, innermost)
        b += part * batch
        address = o * g_c + (b * g_b + d * g_d + h * g_h + w * g_w)[None, :]
        gradient = tl.load(g + address, mask=(o < targets) & alive[None, :], other=0.0)
        at_d, at_h, at_w = (d * step_d)[:, None], (h * step_h)[:, None], (w * step_w)[:, None]
        mask = alive[:, None] & real[None, :]
        mask = _inside(mask, at_d + by_d, at_h + by_h, at_w + by_w, x_deep, x_high, x_wide, checked)
        origin = b[:, None] * x_b + at_d * x_d + at_h * x_h + at_w * x_w
        values = tl.load(x + origin + offset, mask=mask, other=0.0)
        a = _product(gradient, values, a, precision, widen)
        if two:
            second = tl.load(q + address, mask=(o < targets) & alive[None, :], other=0.0)
            z = _product(second, _square(values), z, precision, widen)
    packed = (slot * columns + k)[None, :] * TARGETS + tl.arange(0, TARGETS)[:, None]
    tl.store(of_mean + packed, a, mask=real[None, :])
    if two:
        tl.store(of_variance + packed, z, mask=real[None, :])
