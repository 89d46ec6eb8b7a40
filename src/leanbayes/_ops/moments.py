"""Elementwise work of moment propagation as single sweeps over memory, for float32 tensors on the CPU.

A pass that carries variances has ten elementwise operations where the plain pass has one, and each would read and write
memory of its own. A function returns None for tensors that its kernel does not take, and the caller uses torch instead.
The kernels are in `leanbayes._ops.moment_kernels`; they are compiled at their first use and cached on disk.
"""

import importlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leanbayes._ops import compiled, innermost_moments
from leanbayes._ops.threads import share_out

__all__ = [
    "add_turned",
    "affine",
    "array_of",
    "beside",
    "by_example",
    "channels_innermost",
    "fit",
    "fits",
    "norm_tokens",
    "pool_largest",
    "pull_back_square",
    "rectify",
    "rectify_and_sum",
    "resample",
    "square",
    "sums_positions",
    "sweep",
    "sweep_rows",
    "turned",
]

_LEAST = 2**14  # numbers, below which the calls cost more than the sweeps save
_PIECE = 2**15  # numbers that a thread takes at least


def channels_innermost(x: Tensor) -> Tensor:
    """Return images in channels_last.

    An image of one channel has both layouts at once, and torch goes by the stride of that channel, which is made 1.
    """
    if x.shape[1] == 1:
        return x.contiguous().view(x.shape[0], *x.shape[2:], 1).permute(0, 3, 1, 2)
    return x.contiguous(memory_format=torch.channels_last)


Remake = Callable[[], tuple[Tensor, Tensor]]


def rectify(mean: Tensor, variance: Tensor, remake: Remake | None = None) -> tuple[Tensor, Tensor] | None:
    """Return mean and variance of relu(z) for Gaussian z.

    If ``remake`` is given, the backward pass calls it to get the two arguments again, instead of keeping them.
    """
    if not fit(mean, variance):
        return None
    if not torch.is_grad_enabled():  # torch looks at signatures in each call of `apply`
        return _Rectify.forward(mean, variance, remake)
    moments: tuple[Tensor, Tensor] = _Rectify.apply(mean, variance, remake)
    return moments


def sums_positions(mean: Tensor, variance: Tensor) -> bool:
    """Tell whether `rectify_and_sum` handles these tensors if no gradients are recorded."""
    return mean.dim() == 4 and fit(mean, variance) and _channels(mean) is not None


def rectify_and_sum(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return mean and variance of relu(z), and sums over positions, for images in channels_last without gradients.

    The sums, of shape (examples, 4, channels), are those of E = E relu(z), E², Var relu(z) and Cov(z, relu(z)).
    """
    if innermost_moments.takes(mean, variance):
        return innermost_moments.rectify_and_sum(mean, variance)
    if torch.is_grad_enabled() or not sums_positions(mean, variance):
        return None
    out, sums = (
        (torch.empty_like(mean), torch.empty_like(mean)),
        mean.new_zeros(len(mean), 4, mean.shape[1]),
    )
    by_example("rectify_and_sum", [mean, variance], [sums], out)
    return *out, sums


class _Rectify(torch.autograd.Function):
    @staticmethod
    def forward(mean: Tensor, variance: Tensor, remake: Remake | None) -> tuple[Tensor, Tensor]:  # noqa: ARG004
        out = torch.empty_like(mean), torch.empty_like(mean)
        sweep("rectify", [mean, variance, *out])
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:  # noqa: ARG004
        ctx.remake = inputs[2]
        if ctx.remake is None:
            ctx.save_for_backward(*inputs[:2])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, of_mean: Tensor, of_variance: Tensor) -> tuple[Tensor | None, ...]:
        mean, variance = ctx.saved_tensors if ctx.remake is None else ctx.remake()
        out = torch.empty_like(mean), torch.empty_like(mean)
        sweep("pull_back_rectify", [mean, variance, _like(of_mean, mean), _like(of_variance, mean), *out])
        return *out, None


def square(x: Tensor, variance: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return x² + σ² and the sums of x, x² and σ² over the positions, of shape (examples, 3, channels); no gradient.

    The channels must be the innermost axis in memory: images in channels_last, or tokens.
    """
    if not fit(x, variance) or _channels(x) is None:
        return None
    out = torch.empty_like(x)
    sums = x.new_zeros(x.shape[0], 3, x.shape[1] if x.dim() == 4 else x.shape[-1])
    by_example("square", [x, variance, out], [sums])
    return out, sums


def pull_back_square(x: Tensor, of_second: Tensor, of_passed: Tensor, of_sums: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of `square` for x and σ², the latter with ``of_passed`` added."""
    out = torch.empty_like(x), torch.empty_like(x)
    tensors = [x, _like(of_second, x), _like(of_passed, x)]
    by_example("pull_back_square", tensors, [of_sums.contiguous()], out)
    return out


def beside(x: Tensor, variance: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return σ² and x² side by side along the channels, and the sums of x, x² and σ², of shape (examples, 3, channels).

    This is for images in channels_last, without gradients.
    """
    if torch.is_grad_enabled() or not sums_positions(x, variance):
        return None
    count, channels, *size = x.shape
    out = x.new_empty(count, *size, 2 * channels).permute(0, 3, 1, 2)
    sums = x.new_zeros(count, 3, channels)
    by_example("beside", [x, variance], [sums], [out])
    return out, sums


def norm_tokens(
    x: Tensor, variance: Tensor, normed: Tensor, gain: Tensor, on_square: Tensor, added: Tensor, floor: float
) -> tuple[Tensor, Tensor] | None:
    """Correct the means after a layer norm of tokens in place, for the expected scale e; return the variance and sums.

    The variance is g²u + B(u + (x − m)²e²) + D with u = e²σ². The sums of u and (x − m)²e² over the tokens have the
    shape (examples, 2, channels). This is for a norm over the last axis, without gradients.

    Args:
        x: the means before the norm.
        variance: the variances σ² before the norm.
        normed: the means after it, by the statistics of the means.
        gain: the vector g.
        on_square: the vector B.
        added: the vector D.
        floor: what the norm adds to the mean square before it takes the root.
    """
    vectors = (gain, on_square, added)
    if torch.is_grad_enabled() or x.dim() != 3 or not fit(x, variance, normed):
        return None
    if any(v.dtype != torch.float32 for v in vectors):
        return None
    out, sums = torch.empty_like(x), x.new_zeros(len(x), 2, x.shape[2])
    common = [*(vector.contiguous() for vector in vectors), torch.tensor([floor])]
    by_example("norm_tokens", [x, variance], [sums], [normed, out], common)
    return out, sums


def pool_largest(
    mean: Tensor, variance: Tensor, out_size: Sequence[int], windows: Sequence[Sequence[int]]
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return mean and variance of the entry with the largest mean in each window, and sums over the outputs.

    This is for images in channels_last, without gradients. The sums, of shape (examples, 3, channels), are those of the
    means, their squares and the variances.

    Args:
        mean: The means.
        variance: The variances.
        out_size: Height and width of the result.
        windows: For rows and for columns: the length of a window, the stride, the padding and the dilation.
    """
    if torch.is_grad_enabled() or not sums_positions(mean, variance):
        return None
    count, channels = mean.shape[:2]
    axes = zip(mean.shape[2:], out_size, windows, strict=True)
    geometry = torch.tensor([number for before, after, window in axes for number in (before, after, *window)])
    out = tuple(mean.new_empty(count, *out_size, channels).permute(0, 3, 1, 2) for _ in range(2))
    sums = mean.new_zeros(count, 3, channels)
    by_example("pool_largest", [mean, variance], [sums], out, [geometry])
    return out[0], out[1], sums


def resample(variance: Tensor, rho: Tensor, maps: Sequence[Tensor]) -> tuple[Tensor, Tensor] | None:
    """Return ρ(Σ aσ)² + (1 − ρ)Σ a²σ² for images in channels_last, without gradients, and sums over the outputs.

    The sums, of shape (examples, 2, channels), are those of the common parts and of the whole variances.

    Args:
        variance: σ².
        rho: The fraction ρ of each example and channel, of shape (examples, channels).
        maps: For rows and for columns, the weights a as a matrix (before, after).
    """
    if torch.is_grad_enabled() or not sums_positions(variance, variance):
        return None
    (row_starts, row_weights), (column_starts, column_weights) = map(_band, maps)
    count, channels, _, width = variance.shape
    starts = torch.cat([row_starts, column_starts, torch.tensor([width])])
    out = variance.new_empty(count, len(row_weights), len(column_weights), channels).permute(0, 3, 1, 2)
    sums = variance.new_zeros(count, 2, channels)
    fractions = rho.to(variance).expand(count, channels).contiguous()
    by_example("resample", [variance], [sums], [out], [starts, row_weights, column_weights], [fractions])
    return out, sums


def _band(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for each column of a matrix (before, after), the first row that is not 0, and the weights from there."""
    weights = matrix.mT
    used = weights != 0
    first = used.to(torch.uint8).argmax(1)
    last = weights.shape[1] - 1 - used.flip(1).to(torch.uint8).argmax(1)
    length = max(int((last - first).max()) + 1, 1) if bool(used.any()) else 1
    first = first.clamp_max(weights.shape[1] - length)
    return first, weights.gather(1, first[:, None] + torch.arange(length)).contiguous()


def turned(x: Tensor) -> Tensor:
    """Return images in channels_last with the batch innermost instead, as `leanbayes._ops.sparse` takes them.

    Tensors that the kernel does not take, and all tensors while gradients are recorded, are returned unchanged.
    """
    if torch.is_grad_enabled() or x.dim() != 4 or not fit(x) or _channels(x) is None:
        return x
    out = x.new_empty(x.shape[1], x.shape[2] * x.shape[3], x.shape[0])
    _by_positions("turn", [_flat(x).reshape(len(x), -1, x.shape[1]), np.asarray(out)])
    return out.view(x.shape[1], x.shape[2], x.shape[3], len(x)).movedim(-1, 0)


def add_turned(total: Tensor, value: Tensor) -> Tensor:
    """Add ``value``, with the batch innermost, to ``total`` in channels_last; in place if no gradient is recorded."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return total + value
    inner = value.movedim(0, -1)
    if total.dim() != 4 or not fit(total) or _channels(total) is None or not inner.is_contiguous():
        return total.add_(value)
    arrays = [
        np.asarray(inner).reshape(total.shape[1], -1, len(total)),
        _flat(total).reshape(len(total), -1, total.shape[1]),
    ]
    _by_positions("add_turned", arrays)
    return total


def affine(
    x: Tensor, variance: Tensor, centre: Tensor, on_variance: Tensor, on_square: Tensor, added: Tensor
) -> tuple[Tensor, Tensor] | None:
    """Return A·σ² + B·(x − m)² + D, where m, A, B and D are vectors over channels, and two sums over positions.

    This is the variance after a norm with a random gain. The sums of σ² and (x − m)² have the shape
    (examples, 2, channels).
    """
    vectors = (centre, on_variance, on_square, added)
    if innermost_moments.takes(x, variance) and all(v.dtype == torch.float32 for v in vectors):
        return innermost_moments.norm_variances(x, variance, *vectors)
    if not fit(x, variance) or _channels(x) is None or any(v.dtype != torch.float32 for v in vectors):
        return None
    arguments = (x, variance, *(vector.contiguous() for vector in vectors))
    result: tuple[Tensor, Tensor] = (_Affine.apply if torch.is_grad_enabled() else _Affine.forward)(*arguments)
    return result


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(
        x: Tensor, variance: Tensor, centre: Tensor, on_variance: Tensor, on_square: Tensor, added: Tensor
    ) -> tuple[Tensor, Tensor]:
        out, sums = torch.empty_like(x), x.new_zeros(x.shape[0], 2, len(centre))
        by_example("affine", [x, variance], [sums], [out], [centre, on_variance, on_square, added])
        return out, sums

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs[:-1])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor, of_sums: Tensor) -> tuple[Tensor, ...]:
        x, variance, centre, on_variance, on_square = ctx.saved_tensors
        out = torch.empty_like(x), torch.empty_like(x)
        sums = x.new_zeros(x.shape[0], 4, len(centre))
        tensors = [x, variance, _like(gradient, x)]
        by_example("pull_back_affine", tensors, [of_sums.contiguous(), sums], out, [centre, on_variance, on_square])
        of_variance, of_square, of_added, of_x = sums.sum(0)
        return *out, -of_x, of_variance, of_square, of_added


def _channels(x: Tensor) -> int | None:
    """Return how many channels lie innermost in memory; None if no positions lie before them."""
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return x.shape[1]
    return x.shape[-1] if x.dim() == 3 and x.is_contiguous() else None


def fits(numbers: int, *tensors: Tensor) -> bool:
    """Tell whether a kernel takes float32 tensors in main memory, in any layout, if it works on so many numbers."""
    return (
        not torch.compiler.is_compiling()
        and numbers >= _LEAST
        and all(t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors)
        and not torch._C._functorch.maybe_current_level()
        and compiled.available()
    )


def fit(*tensors: Tensor) -> bool:
    """Tell whether all are large float32 tensors in main memory with the same dense layout."""
    first = tensors[0]
    if torch.compiler.is_compiling():  # before any question about sizes, which would fix them in the graph
        return False
    return (
        first.numel() >= _LEAST
        and (first.is_contiguous() or (first.dim() == 4 and first.is_contiguous(memory_format=torch.channels_last)))
        and all(
            t.dtype == torch.float32
            and t.device.type == "cpu"
            and t.shape == first.shape
            and t.stride() == first.stride()
            for t in tensors
        )
        and not torch._C._functorch.maybe_current_level()
        and compiled.available()
    )


def _like(value: Tensor, other: Tensor) -> Tensor:
    """Return ``value`` in the layout of ``other``."""
    return value if value.stride() == other.stride() else torch.empty_like(other).copy_(value)


def _flat(tensor: Tensor) -> Any:
    inner = tensor if tensor.is_contiguous() else tensor.permute(0, 2, 3, 1)
    return np.asarray(inner.detach()).reshape(-1)


def sweep(name: str, tensors: Sequence[Tensor], home: str = "moment_kernels") -> None:
    """Call a kernel of the module ``home`` on pieces of the tensors, in threads."""
    kernel = _kernel(name, home)
    arrays = [_flat(tensor) for tensor in tensors]
    step = _share(arrays[0].size)

    def piece(start: int) -> None:
        kernel(*(array[start : start + step] for array in arrays))

    share_out(piece, range(0, arrays[0].size, step))


def sweep_rows(name: str, tensors: Sequence[Tensor], numbers: Sequence[Any] = (), *, home: str) -> None:
    """Call a kernel of the module ``home`` on runs of rows of contiguous tensors, and on ``numbers``, in threads."""
    kernel = _kernel(name, home)
    arrays = [np.asarray(tensor).reshape(-1, tensor.shape[-1]) for tensor in tensors]
    step = max(1, _share(arrays[0].size) // max(arrays[0].shape[1], 1))

    def rows(start: int) -> None:
        kernel(*(array[start : start + step] for array in arrays), *numbers)

    share_out(rows, range(0, len(arrays[0]), step))


@cache
def _kernel(name: str, home: str = "moment_kernels") -> Callable[..., None]:
    """Return a compiled kernel. Importing numba takes half a second, which small models need not wait for."""
    kernel: Callable[..., None] = getattr(importlib.import_module(f"leanbayes._ops.{home}"), name)
    return kernel


def _share(numbers: int) -> int:
    """Return how many numbers a thread takes at a time: four shares each, as a call costs as much as thousands."""
    return max(_PIECE, -(-numbers // (4 * torch.get_num_threads())))


def array_of(tensor: Tensor) -> Any:
    """Return the contiguous numbers of a tensor as an array, which shares its memory."""
    return np.asarray(tensor.detach().contiguous())


def by_example(
    name: str,
    tensors: Sequence[Tensor],
    rows: Sequence[Tensor],
    out: Sequence[Tensor] = (),
    common: Sequence[Tensor] = (),
    given: Sequence[Tensor] = (),
    *,
    home: str = "moment_kernels",
) -> None:
    """Call a kernel of the module ``home`` on the (examples, positions, channels) of several examples, in threads.

    The kernel gets the examples' ``tensors``, then ``common``, which all examples share, then the examples' rows of
    ``given``, then ``out`` and their ``rows``.
    """
    kernel = _kernel(name, home)
    channels = _channels(tensors[0])
    assert channels is not None
    count = tensors[0].shape[0]
    arrays = [_flat(t).reshape(count, -1, channels) for t in tensors]
    outs = [_flat(t).reshape(count, -1, t.shape[1] if t.dim() == 4 else channels) for t in out]
    shared, read, own = ([np.asarray(t.detach()) for t in group] for group in (common, given, rows))

    def examples(start: int) -> None:
        part = slice(start, start + step)
        kernel(*(a[part] for a in arrays), *shared, *(a[part] for a in (*read, *outs, *own)))

    step = max(1, _share(arrays[0].size) // max(arrays[0][0].size, 1))
    share_out(examples, range(0, count, step))


def _by_positions(name: str, arrays: Sequence[Any]) -> None:
    """Call a kernel on runs of positions, which are the middle axis of all arrays, in threads."""
    kernel = _kernel(name)
    positions = arrays[0].shape[1]
    step = max(1, _share(arrays[0].size) * positions // max(arrays[0].size, 1))

    def run(start: int) -> None:
        kernel(*(array[:, start : start + step] for array in arrays))

    share_out(run, range(0, positions, step))
