"""Linear maps and convolutions of which only some weights are stored or random.

`Sparse` is the variance of such a weight. `sparse_moments` computes mean and variance of a layer from the stored
weights alone: E y = op(x, w) and Var y = op(σ_x², w² + σ_w²) + op(x², σ_w²) + σ_b², which is the formula of
`leanbayes.propagate.moments.rules.linear` with its terms in another order.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes._ops import sparse
from leanbayes._ops.moments import turned
from leanbayes._ops.sparse_moments import Stored, boxed_variance, fits_box, output_moments
from leanbayes._ops.sparse_plan import Geometry
from leanbayes._ops.sparse_products import in_autocast
from leanbayes._ops.sparse_tensor import SparseTensor
from leanbayes.propagate.linear_ops import Operation, along_channels
from leanbayes.propagate.moments.tensor import MomentTensor, expected_of, variance_of

__all__ = ["FEWEST_ENTRIES", "Sparse", "SparseMoments", "sparse_moments"]

_KERNELS = ("blocks", "numba")
FEWEST_ENTRIES = 2**12  # of a sparse weight: below, a dense product is quicker than its preparation


@dataclass(frozen=True)
class Sparse:
    """The variances of some entries, by their flat positions; the other entries are not random."""

    index: Tensor
    values: Tensor
    shape: tuple[int, ...]

    def product(self, operation: Operation, second: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Return op(E x², σ_w²) by a product over the random entries alone."""
        if operation is F.linear:
            return sparse.linear(second, self.index, self.shape, self.values)
        return sparse.conv(turned(second), self.index, self.shape, self.values, *args, **kwargs)

    def folded(self, operation: Operation, shares: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Return the sum over the offsets, of the random entries alone."""
        return _folded(self.values, self.index, self.shape, shares)


class SparseMoments(NamedTuple):
    """What `sparse_moments` returns.

    Attributes:
        mean: E y.
        variance: Var y.
        weight: The mean of w, or what serves as such: a filter that was summed with shares of mean 1.
        square: Its square, as it is or summed likewise; None if the input is not random.
        folded_variance: The variance of w, summed likewise, if kernels of variances are even over their window.
    """

    mean: Tensor
    variance: Tensor
    weight: Tensor
    square: Tensor | None
    folded_variance: Tensor | None


def sparse_moments(
    operation: Operation,
    input: Any,
    weight: Any,
    bias: Any,
    options: dict[str, Any],
    shares: Tensor | None,
    boxed: bool,
) -> SparseMoments | None:
    """Return the moments of a layer from the stored weights; None where that does not fit or does not pay.

    Images are rearranged with the batch innermost, and so are the results. The input keeps that layout, because a
    residual connection may read it again.

    Args:
        operation: The linear map or convolution.
        input: Its input, random or not.
        weight: Its weight.
        bias: Its bias, random or not.
        options: Stride, padding, dilation and groups of a convolution.
        shares: For each offset of a filter, the share of outputs for which it falls on the image, if that is asked for.
        boxed: Whether kernels of variances are even over their window.
    """
    known = weight.weight if isinstance(weight, MomentTensor) else None
    x, x_variance = expected_of(input), variance_of(input)
    if known is None or not isinstance(known.mean, SparseTensor) or not _fits(operation, x, known.mean):
        return None
    whole, shape = known.mean, tuple(known.mean.shape)
    if math.prod(shape) < FEWEST_ENTRIES:
        return None
    geometry = sparse.geometry_of(x, shape, **options)
    chosen = sparse.kernels_for(x, whole.positions, shape, **options, moments=True)
    if chosen.forward not in _KERNELS or (boxed and not fits_box(geometry)):
        return None
    stored = Stored(whole.positions, whole.stored, _at_positions(known.random_variance(), known.index, whole.positions))
    if x_variance is None:
        assert stored.variance is not None
        moments = sparse.linear_moments if operation is F.linear else sparse.conv_moments
        mean, variance = moments(_batch_innermost(x), stored.index, shape, stored.mean, stored.variance, **options)
    else:
        if input.dim() == 4:
            input.lay_out(_batch_innermost)
        even = None if shares is None else shares / shares.mean().clamp_min(1e-12)
        mean, variance = _of_random_input(input, stored, shape, geometry, even if boxed else None, options)
    if operation is F.linear:  # rows go on as rows
        mean, variance = mean.contiguous(), variance.contiguous()
    if bias is not None:
        mean = mean.add_(along_channels(operation, expected_of(bias), mean))
        b_variance = variance_of(bias)
        if b_variance is not None:
            variance = variance.add_(along_channels(operation, b_variance, mean))
    if x_variance is None:
        return SparseMoments(mean, variance, whole, None, None)
    return SparseMoments(mean, variance, *_for_correlations(whole, stored, even, boxed))


def _fits(operation: Operation, x: Tensor, weight: SparseTensor) -> bool:
    """Tell whether the kernels take this input; a row or an image for each example, without gradients."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or type(x) is not Tensor or in_autocast(x):
        return False
    rows = 2 if operation is F.linear else 4 if operation is F.conv2d else 0
    return (
        x.dim() == rows
        and x.device.type == "cpu"
        and x.dtype == weight.stored.dtype
        and len(x) > 0
        and not torch._C._functorch.maybe_current_level()
    )


def _batch_innermost(x: Tensor) -> Tensor:
    return sparse.batch_innermost(turned(x))


def _at_positions(values: Tensor, index: Tensor | None, positions: Tensor) -> Tensor:
    """Return a value for each stored weight, which is 0 where it is not random."""
    if index is positions or index is None:
        return values
    return values.new_zeros(len(positions)).index_copy_(0, torch.searchsorted(positions, index), values)


def _of_random_input(
    input: MomentTensor,
    stored: Stored,
    shape: tuple[int, ...],
    geometry: Geometry,
    shares: Tensor | None,
    options: dict[str, Any],
) -> tuple[Tensor, Tensor]:
    """Return mean and variance without the bias; with ``shares``, kernels of variances are even over their window."""
    x, v = (_batch_innermost(part).movedim(0, -1) for part in (input.expected, input.variance))
    size = (geometry.outputs, *geometry.positions[5 - input.dim() :], len(input))
    if shares is None:
        moments = output_moments(x, v, stored, geometry)
    else:
        mean = sparse.conv(input.expected, stored.index, shape, stored.mean, **options)
        moments = mean.movedim(0, -1), boxed_variance(x, v, stored, shares, geometry)
    mean, variance = (part.reshape(size).movedim(-1, 0) for part in moments)
    return mean, variance


def _for_correlations(
    whole: SparseTensor, stored: Stored, even: Tensor | None, boxed: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return w, w² and perhaps σ_w² as `SparseMoments` has them, with as few dense tensors as possible."""
    shape = tuple(whole.shape)
    square = SparseTensor.of(stored.mean.square(), stored.index, shape)
    if len(shape) == 2:
        return (whole, square, None) if even is None else (whole.dense(), square.dense(), None)
    if even is None:
        return whole, _folded(square.stored, stored.index, shape, None), None
    weight = _folded(stored.mean, stored.index, shape, even)
    if not boxed:
        return weight, square.dense(), None
    assert stored.variance is not None
    of_squares, of_variance = (
        _folded(values, stored.index, shape, even) for values in (square.stored, stored.variance)
    )
    return weight, of_squares, of_variance


def _folded(values: Tensor, index: Tensor, shape: tuple[int, ...], shares: Tensor | None) -> Tensor:
    """Return Σ_k s_k w_oik of a weight by its stored values; the offsets keep length 1."""
    size, offsets = (*shape[:2], *[1] * (len(shape) - 2)), math.prod(shape[2:])
    if shares is not None:
        values = values * shares[index % offsets]
    return values.new_zeros(math.prod(size)).index_add(0, index // offsets, values).view(size)
