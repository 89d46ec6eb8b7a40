"""Sums over windows of images whose channels lie innermost, and their gradient, in loops over vectors.

Where the batch lies innermost, it takes the place of the channels, and channels take that of the examples.

A sum over a window of r x c offsets takes r + c additions for each number instead of r·c: first along each row, then
over the rows. The geometry gives, for rows and for columns, the size, the size of the output, the window, the stride,
the padding and the dilation, as `leanbayes._ops.moment_kernels.pool_largest` takes it.
"""

from typing import Any

import numpy as np
from numpy import float32 as f

from leanbayes._ops.normal_kernels import _kernel

__all__ = ["pull_back_beside", "spread_windows", "sum_windows"]


@_kernel
def _add(out: Any, value: Any) -> None:
    for i in range(out.size):
        out[i] += value[i]


@_kernel
def _clear(out: Any) -> None:
    for i in range(out.size):
        out[i] = 0


@_kernel
def _meets(place: Any, offset: Any, sizes: Any) -> Any:
    """Return the output whose window has ``place`` at ``offset``, or -1."""
    ahead = place + sizes[4] - offset * sizes[5]
    if ahead < 0 or ahead % sizes[3] != 0 or ahead // sizes[3] >= sizes[1]:
        return -1
    return ahead // sizes[3]


@_kernel
def _run(offset: Any, sizes: Any) -> Any:
    """Return the first output, and the one behind the last, that the offset gives a place inside the image.

    Only for stride 1, where these outputs, and their places, lie side by side.
    """
    ahead = sizes[4] - offset * sizes[5]
    return max(0, ahead), min(sizes[1], sizes[0] + ahead)


@_kernel
def sum_windows(x: Any, geometry: Any, out: Any) -> None:
    """Sum (examples, positions, channels) over the windows."""
    count, _, channels = x.shape
    rows, columns = geometry[:6], geometry[6:]
    width, out_width = columns[0] * channels, columns[1] * channels
    line = np.empty(out_width, x.dtype)
    for n in range(count):
        xs, outs = x[n].reshape(-1), out[n].reshape(-1)
        _clear(outs)
        for row in range(rows[0]):
            used = False
            for a in range(rows[2]):
                used |= _meets(row, a, rows) >= 0
            if not used:
                continue
            values = xs[row * width : (row + 1) * width]
            _clear(line)
            for b in range(columns[2]):
                ahead = columns[4] - b * columns[5]
                if columns[3] == 1:
                    first, last = _run(b, columns)
                    if first < last:
                        _add(
                            line[first * channels : last * channels],
                            values[(first - ahead) * channels : (last - ahead) * channels],
                        )
                    continue
                for j in range(columns[1]):
                    place = j * columns[3] - ahead
                    if 0 <= place < columns[0]:
                        _add(
                            line[j * channels : (j + 1) * channels],
                            values[place * channels : (place + 1) * channels],
                        )
            for a in range(rows[2]):
                i = _meets(row, a, rows)
                if i >= 0:
                    _add(outs[i * out_width : (i + 1) * out_width], line)


@_kernel
def spread_windows(gradient: Any, geometry: Any, out: Any) -> None:
    """Give each place the sum of the gradients of the windows that hold it: the gradient of `sum_windows`."""
    count, _, channels = gradient.shape
    rows, columns = geometry[:6], geometry[6:]
    width, out_width = columns[0] * channels, columns[1] * channels
    line = np.empty(width, gradient.dtype)
    for n in range(count):
        gs, outs = gradient[n].reshape(-1), out[n].reshape(-1)
        _clear(outs)
        for i in range(rows[1]):
            values = gs[i * out_width : (i + 1) * out_width]
            _clear(line)
            for b in range(columns[2]):
                ahead = columns[4] - b * columns[5]
                if columns[3] == 1:
                    first, last = _run(b, columns)
                    if first < last:
                        _add(
                            line[(first - ahead) * channels : (last - ahead) * channels],
                            values[first * channels : last * channels],
                        )
                    continue
                for j in range(columns[1]):
                    place = j * columns[3] - ahead
                    if 0 <= place < columns[0]:
                        _add(
                            line[place * channels : (place + 1) * channels],
                            values[j * channels : (j + 1) * channels],
                        )
            for a in range(rows[2]):
                row = i * rows[3] - rows[4] + a * rows[5]
                if 0 <= row < rows[0]:
                    _add(outs[row * width : (row + 1) * width], line)


@_kernel
def pull_back_beside(x: Any, of_sums: Any, of_both: Any, of_x: Any, of_variance: Any) -> None:
    """Compute the gradients of `leanbayes._ops.moment_kernels.beside` for x and σ², of which it writes σ² and x²."""
    count, positions, channels = x.shape
    for n in range(count):
        plain, squares, spread = of_sums[n, 0], of_sums[n, 1], of_sums[n, 2]
        for p in range(positions):
            xs, xs_out, vs_out = x[n, p], of_x[n, p], of_variance[n, p]
            passed, seconds = of_both[n, p, :channels], of_both[n, p, channels:]
            for c in range(channels):
                xs_out[c] = f(2) * xs[c] * (seconds[c] + squares[c])
            for c in range(channels):
                xs_out[c] += plain[c]
            for c in range(channels):
                vs_out[c] = passed[c] + spread[c]
