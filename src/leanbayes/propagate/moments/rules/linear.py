"""Linear layers and convolutions, whose input, weight and bias are each random or not (VDP++, eq. 2, 3, 6 and 7).

Var y = op(x² + σ_x², σ_w²) + op(σ_x², w²) + σ_b²: one product more for each operand that is random.

With ``kernels="box"`` a convolution spreads the squares of each filter evenly over its window. The kernels of the
formula are nowhere negative, and what they meet changes little from one position to the next. With K_oi the mean of a
kernel over its offsets, Σ_ik K_oik v_i(p + k) ≈ Σ_i K_oi Σ_k v_i(p + k): a product of matrices at each position, and a
sum over windows. Where the exact formula has two 3x3 convolutions, this has 2/9 of the multiplications of one. An
offset counts as often as it falls on the image: where the image is no larger than the filter, the offsets at the rim of
the filter, which hardly learn, would otherwise count too much. The box is exact for kernels of one entry, for weights
whose squares and variances do not depend on the offset, and for inputs that are constant within a window; with padding,
the mean over the positions is exact for constant inputs.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes._ops.box_variance import Windows, box_variance
from leanbayes._ops.innermost_moments import is_innermost
from leanbayes._ops.layer_variance import Geometry, layer_variance, second_moment
from leanbayes._ops.matrix_products import times_matrix
from leanbayes._ops.moments import add_turned, beside, channels_innermost, square
from leanbayes._ops.positions import folded
from leanbayes._ops.sparse_tensor import SparseTensor
from leanbayes.propagate.linear_ops import LINEAR_OPS, Operation, along_channels, channel_axis, for_each_axis
from leanbayes.propagate.moments.correlations import Correlations, LinearMap
from leanbayes.propagate.moments.kinds import RULES, Layer
from leanbayes.propagate.moments.rules.sparse_linear import FEWEST_ENTRIES, Sparse, sparse_moments
from leanbayes.propagate.moments.tensor import MomentTensor, Setting, expected_of, first_random, variance_of
from leanbayes.propagate.shared_variance import Shared

__all__ = ["Dense", "WeightVariance", "linear", "weight_variance"]

_CONVOLUTIONS = (F.conv1d, F.conv2d, F.conv3d)
_TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
_IMAGES = (F.conv2d, F.conv_transpose2d)
_DEFAULTS: dict[str, Any] = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
_PIECE = 2**20  # numbers of a part of the batch that is taken at a time, so that it stays in the cache

Means = tuple[Tensor, Tensor, Tensor]
"""The means over positions of x, x² and σ_x²."""


@RULES.linear(
    *LINEAR_OPS,
    exact=True,
    assumes='independent inputs, weights and bias; with `kernels="box"` also filters that are even over their window',
)
def linear(operation: Operation, input: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> Layer:
    """Compute Var y = op(x² + σ_x², σ_w²) + op(σ_x², w²) + σ_b²."""
    call = Call(operation, args, kwargs)
    x, w, b, setting = *map(expected_of, (input, weight, bias)), first_random(input, weight, bias).setting
    x_variance, w_variance, b_variance = variance_of(input), weight_variance(operation, weight), variance_of(bias)
    box = setting.kernels == "box" and operation in _CONVOLUTIONS and call.groups == 1 and x_variance is not None
    shares = _shares(call, x, tuple(w.shape[2:])) if box or setting.rank > 0 else None
    means: Means | None = None
    w_square: Tensor | None = None
    stored = None
    if isinstance(w, SparseTensor):
        stored = sparse_moments(operation, input, weight, bias, call.options, shares, box)
        w = w if stored is not None else w.dense()
    if stored is None and isinstance(input, MomentTensor) and is_innermost(x):
        input.lay_out(channels_innermost)
    x, x_variance = expected_of(input), variance_of(input)  # in the layout that they have now
    mean = call.of_means(x, w, b) if stored is None else stored.mean
    if stored is not None:
        variance, w, w_square = stored.variance, stored.weight, stored.square
        w_variance = w_variance if stored.folded_variance is None else Dense(stored.folded_variance)
        means = None if x_variance is None else _means_over_positions(input)
    elif x_variance is not None and box:
        boxed = _variance_in_boxes(call, x, x_variance, w, w_variance, b_variance, shares)
        variance, w_square, w_variance, means = boxed
        means = _means_over_positions(input) if means is None else means
    elif x_variance is not None and w_variance is not None:
        w_square = w.square()
        variance, means = _variance_of_both(call, x, x_variance, w, w_square, w_variance, b_variance)
    elif x_variance is not None:
        w_square = w.square()
        variance = operation(x_variance, w_square, b_variance, *args, **kwargs)
    elif w_variance is not None:
        variance = w_variance.product(operation, _square_in_layout(x), args, kwargs)
        if b_variance is not None:
            variance = variance + along_channels(operation, b_variance, mean)
    else:
        assert b_variance is not None
        variance = along_channels(operation, b_variance, mean).expand_as(mean)
    random = isinstance(input, MomentTensor)
    return Layer(
        mean,
        variance,
        LinearMap(
            input=x,
            noise=input.noise if random else None,
            correlations=_correlations_of(operation, input) if random else Correlations(),
            weight=w,
            square=w_square,
            fold_variance=None if w_variance is None else functools.partial(w_variance.folded, operation),
            bias_variance=b_variance,
            channel=channel_axis(operation, x),
            axes=_axes_of_positions(operation, x, setting),
            at_one_position=call.at_one_position,
            shares=shares,
            averages=means if setting.examples == 0 else None,  # the means are those of each row of the first axis
        ),
    )


def _square_in_layout(x: Tensor) -> Tensor:
    """Return x² in the layout of x, which torch would change for images of one channel in channels_last."""
    square = x.square()
    return square if square.stride() == x.stride() or x.dim() != 4 else channels_innermost(square)


def _correlations_of(operation: Operation, input: MomentTensor) -> Correlations:
    """Return what the entries of the input share; a linear layer of rows takes loadings by runs as well."""
    return input.compact if operation is F.linear and input.dim() == 2 else input.correlations


class Call(NamedTuple):
    """A linear operation with the arguments that follow its bias."""

    operation: Operation
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def groups(self) -> int:
        """How many groups of channels the operation keeps apart."""
        if self.operation is F.linear:
            return 1
        groups: int = self.kwargs.get("groups", self.args[3] if len(self.args) > 3 else 1)
        return groups

    @property
    def options(self) -> dict[str, Any]:
        """Stride, padding, dilation and groups of a convolution that is not transposed; nothing of a linear map."""
        if self.operation is F.linear:
            return {}
        return _DEFAULTS | dict(zip(_DEFAULTS, self.args, strict=False)) | self.kwargs

    @property
    def geometry(self) -> Geometry | None:
        """The arguments as the backward pass of a convolution takes them; None if the padding is a word."""
        if self.operation is F.linear:
            return ()
        transposed = self.operation in _TRANSPOSED
        rank = 1 + (_TRANSPOSED if transposed else _CONVOLUTIONS).index(self.operation)
        names = "stride padding output_padding groups dilation" if transposed else "stride padding dilation groups"
        options = {"output_padding": 0} | _DEFAULTS | dict(zip(names.split(), self.args, strict=False)) | self.kwargs
        if isinstance(options["padding"], str):
            return None
        names = "stride padding dilation output_padding"
        stride, padding, dilation, output_padding = (for_each_axis(options[name], rank) for name in names.split())
        return stride, padding, dilation, transposed, output_padding, options["groups"]

    def windows(self, window: tuple[int, ...]) -> Windows | None:
        """Return the windows of a convolution of images; None for any other operation."""
        if self.operation is not F.conv2d or isinstance(self.options["padding"], str):
            return None
        steps = (for_each_axis(self.options[name], 2) for name in ("stride", "padding", "dilation"))
        rows, columns = zip(window, *steps, strict=True)
        return rows, columns

    def of_means(self, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        """Apply the operation itself. Small images under large filters have their channels outermost meanwhile.

        The convolutions of the CPU then take 0.7 of the time, because they rearrange the filters faster in that layout.
        """
        operation, args, kwargs = self
        if operation is F.linear:
            return times_matrix(x, w, b)
        small = operation is F.conv2d and x.dim() == 4 and x.device.type == "cpu" and not torch.compiler.is_compiling()
        if not small or x.is_contiguous():
            return operation(x, w, b, *args, **kwargs)
        if 2 * x.numel() >= w.numel() or w.shape[2] * w.shape[3] == 1:
            return operation(x, w, b, *args, **kwargs)
        return channels_innermost(operation(x.contiguous(), w, b, *args, **kwargs))

    def at_one_position(self, value: Tensor, kernel: Tensor) -> Tensor:
        """Apply the operation to a value of one position with a kernel of one offset."""
        if self.operation is F.linear:
            return F.linear(value, kernel)
        if self.groups == 1 and value.dim() == kernel.dim():  # a product of matrices is cheaper to start
            matrix = kernel.flatten(1).mT if self.operation in _TRANSPOSED else kernel.flatten(1)
            return F.linear(value.flatten(1), matrix).view(value.shape[0], len(matrix), *value.shape[2:])
        return self.operation(value, kernel, None, groups=self.groups)


def _axes_of_positions(operation: Operation, x: Tensor, setting: Setting) -> tuple[int, ...]:
    if operation is not F.linear:
        return tuple(range(channel_axis(operation, x) + 1, x.dim()))
    return tuple(axis for axis in range(x.dim() - 1) if axis != setting.examples) if x.dim() > 2 else ()


# ---- the variance of a weight, as it is stored


class WeightVariance(Protocol):
    """σ_w² as a linear operation meets it."""

    def product(self, operation: Operation, second: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Return op(E x², σ_w²)."""
        ...

    def folded(self, operation: Operation, shares: Tensor | None = None) -> Tensor:
        """Return Σ_k s_k σ_w²: a sum over the offsets of a filter, which keep length 1; the shares are 1 if None."""
        ...


@dataclass(frozen=True)
class Dense:
    """A variance for every entry; if it is a function of scales that exist anyway, these and the function too."""

    variance: Tensor
    scales: Tensor | None = None
    of_scales: Callable[[Tensor], Tensor] | None = None

    def product(self, operation: Operation, second: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Return op(E x², σ_w²) by the operation itself."""
        if operation is F.linear:
            return times_matrix(second, self.variance)
        return operation(second, self.variance, None, *args, **kwargs)

    def folded(self, operation: Operation, shares: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Return the sum over the offsets."""
        return folded(self.variance, shares)


def weight_variance(operation: Operation, weight: Any) -> WeightVariance | None:
    """Return the variance of a weight as it is stored; None if the weight is not random."""
    if not isinstance(weight, MomentTensor):
        return None
    known = weight.weight
    if known is None:
        return Dense(weight.variance)
    shared = known.shared_variance()
    if shared is not None:
        return Shared(shared, known.mean.shape)
    sparse_operation = operation is F.linear or operation in _CONVOLUTIONS
    if known.index is not None and known.mean.numel() >= FEWEST_ENTRIES and sparse_operation:
        return Sparse(known.index, known.random_variance(), tuple(known.mean.shape))
    if known.index is not None or known.family.relative or not torch.is_grad_enabled():
        return Dense(weight.variance)
    return Dense(weight.variance, known.spread, known.family.variance)


# ---- the exact formula


def _variance_of_both(
    call: Call,
    x: Tensor,
    x_variance: Tensor,
    w: Tensor,
    w_square: Tensor,
    w_variance: WeightVariance,
    b_variance: Tensor | None,
) -> tuple[Tensor, Means | None]:
    """Return the variance if input and weight are random, and the means over positions if a sweep left them."""
    operation, args, kwargs = call
    geometry = call.geometry
    positions = (operation is F.linear and x.dim() == 3) or (operation in _IMAGES and x.dim() == 4)
    swept = square(x, x_variance) if positions else None
    if swept is None:
        second = x.square() + x_variance
        passed = call.of_means(x_variance, w_square, b_variance)
        return passed + w_variance.product(operation, second, args, kwargs), None
    if isinstance(w_variance, Dense) and geometry is not None:
        scales, of_scales = w_variance.scales, w_variance.of_scales
        variance, sums = layer_variance(
            *(x, x_variance, w, w_square, w_variance.variance, scales, of_scales, b_variance, geometry, swept)
        )
    else:
        second, sums = second_moment(x, x_variance, swept)
        variance = operation(x_variance, w_square, b_variance, *args, **kwargs)
        variance = add_turned(variance, w_variance.product(operation, second, args, kwargs))
    count = x.numel() // (sums.shape[0] * sums.shape[2])
    shape = (x.shape[0], -1, 1, 1) if x.dim() == 4 else (x.shape[0], 1, -1)
    plain, squares, spread = (part.view(shape) / count for part in sums.unbind(1))
    return variance, (plain, squares, spread)


# ---- the box


def _variance_in_boxes(
    call: Call,
    x: Tensor,
    x_variance: Tensor,
    w: Tensor,
    w_variance: WeightVariance | None,
    b_variance: Tensor | None,
    shares: Tensor | None,
) -> tuple[Tensor, Tensor, WeightVariance | None, Means | None]:
    """Return box((w² + σ_w²)·σ_x² + σ_w²·x²) + σ_b², w² and σ_w² summed over the offsets, and the means if swept."""
    window, operation, options = tuple(w.shape[2:]), call.operation, call.options
    shares = x.new_ones(math.prod(window)) if shares is None else shares / shares.mean().clamp_min(1e-12)
    w_square = _folded_square(w, shares)
    w_folded = None if w_variance is None else w_variance.folded(operation, shares)
    matrix = w_square if w_folded is None else torch.cat([w_square + w_folded, w_folded], 1)

    def box(value: Tensor) -> Tensor:
        channels = value.shape[channel_axis(operation, value)]
        even = value.new_full((channels, 1, *window), 1 / math.prod(window))
        return operation(value, even, None, **options | {"groups": channels})

    def passed(value: Tensor) -> Tensor:
        """Multiply by the matrix where there are fewer positions: after a box with a stride, otherwise before."""
        if math.prod(window) == 1:
            return operation(value, matrix, None, **options)
        if any(step > 1 for step in for_each_axis(options["stride"], len(window))):
            return operation(box(value), matrix)
        return box(operation(value, matrix))

    means: Means | None = None
    windows = None if w_folded is None else call.windows(window)
    swept = None if windows is None else _sweep_boxes(windows, x, x_variance, matrix)
    if swept is not None:
        variance, means = swept
    elif w_folded is None:
        variance = passed(x_variance)
    elif (
        torch.is_grad_enabled()
        or x.device.type != "cpu"
        or x.dim() != len(window) + 2
        or torch.compiler.is_compiling()  # the number of pieces depends on the batch, which a graph leaves open
    ):
        variance = passed(torch.cat([x_variance, x.square()], channel_axis(operation, x)))
    else:
        variance, means = _in_pieces(passed, x, x_variance)
    if b_variance is not None:
        variance = variance + along_channels(operation, b_variance, variance)
    return variance, w_square, None if w_folded is None else Dense(w_folded), means


def _sweep_boxes(windows: Windows, x: Tensor, x_variance: Tensor, matrix: Tensor) -> tuple[Tensor, Means | None] | None:
    """Do the same in few sweeps over memory, without the bias; return None if they do not take these tensors."""
    window_size = math.prod(window for window, *_ in windows)
    swept = box_variance(x, x_variance, matrix.flatten(1) / window_size, windows)
    if swept is None:
        return None
    variance, sums = swept
    mean, square, spread = (part[..., None, None] / math.prod(x.shape[2:]) for part in sums.unbind(1))
    return variance, (mean, square, spread)


def _folded_square(w: Tensor, shares: Tensor) -> Tensor:
    """Return Σ_k s_k w_oik², with length 1 along the offsets; computed in rows whose squares stay in the cache."""
    rows = max(1, _PIECE // 4 * len(w) // max(w.numel(), 1))
    squares = torch.cat([part.square().flatten(2) @ shares for part in w.split(rows)])
    return squares[(..., *[None] * (w.dim() - 2))]


def _in_pieces(passed: Operation, x: Tensor, x_variance: Tensor) -> tuple[Tensor, Means | None]:
    """Return ``passed`` of σ_x² and x² side by side, some examples at a time, and the means if a sweep left them."""
    size = max(1, _PIECE * len(x) // max(x.numel(), 1))
    result: Tensor | None = None
    all_sums: list[Tensor] = []
    for start in range(0, max(len(x), 1), size):
        part_x, part_variance = x[start : start + size], x_variance[start : start + size]
        swept = beside(part_x, part_variance)
        if swept is None:
            both = torch.cat([part_variance, part_x.square()], 1)
        else:
            both = swept[0]
            all_sums.append(swept[1])
        part = passed(both)
        if size >= len(x):
            result = part
            break
        if result is None:
            strides = math.prod(part.shape[1:]), *part.stride()[1:]
            result = part.new_empty_strided((len(x), *part.shape[1:]), strides)
        result[start : start + size] = part
    assert result is not None
    if sum(map(len, all_sums)) < max(len(x), 1):
        return result, None
    count = math.prod(x.shape[2:])
    mean, square, variance = (part[..., None, None] / count for part in torch.cat(all_sums).unbind(1))
    return result, (mean, square, variance)


def _means_over_positions(x: MomentTensor) -> Means | None:
    """Return the means over the positions of images, known or computed now; None for anything else."""
    known = x.averages
    if known is not None and known.mean is not None and known.square is not None:
        return known.mean, known.square, known.variance
    if x.dim() != 4:
        return None
    mean, square, variance = (v.mean((2, 3), keepdim=True) for v in (x.expected, x.expected.square(), x.variance))
    return mean, square, variance


def _shares(call: Call, x: Tensor, window: tuple[int, ...]) -> Tensor | None:
    """Return, for each offset of a filter, the share of outputs for which it falls on the image; None if not known."""
    if call.operation is F.linear:
        return x.new_ones(1)
    rank = len(window)
    if call.operation not in _CONVOLUTIONS or call.groups != 1 or x.dim() != rank + 2:
        return None
    options = call.options
    padding = options["padding"]
    paddings = [padding] * rank if isinstance(padding, str) else for_each_axis(padding, rank)
    steps = (for_each_axis(options[name], rank) for name in ("stride", "dilation"))
    shares = [1.0]
    for sizes in zip(x.shape[2:], window, paddings, *steps, strict=True):
        shares = [a * b for a in shares for b in _shares_along(*sizes)]
    return x.new_tensor(shares)


@functools.cache
def _shares_along(n: int, kernel: int, padding: int | str, stride: int, dilation: int) -> list[float]:
    reach = dilation * (kernel - 1)
    if isinstance(padding, str):
        first, outputs = (-(reach // 2), n) if padding == "same" else (0, (n - reach - 1) // stride + 1)
    else:
        first, outputs = -padding, (n + 2 * padding - reach - 1) // stride + 1
    starts = range(first, first + outputs * stride, stride)
    return [sum(0 <= start + k * dilation < n for start in starts) / outputs for k in range(kernel)]
