"""Linear maps and convolutions by a weight of which only the non-zeros are stored (SSVI, Li et al. 2024, eq. 4, 5).

A weight is given by its ``shape``, the sorted flat ``index`` of its non-zeros, and their values: means, or means and
variances. The sparse kernels multiply nothing by a zero, so an infinite input does not reach an output through a zero.

The sums run over memory with the batch innermost. The results have the usual shape and these strides, which the
elementwise operations of torch preserve: a chain of layers changes its layout only at its two ends
(`batch_innermost`). Without numba, products are dense or use the sparse matrices of torch. On a GPU, products use the
kernels of Triton, which take several layouts. These multiply 16 outputs at a time, so there an infinite input reaches
an output through a zero if one of its 15 neighbours stores a weight for that input.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes._ops import compiled, gpu
from leanbayes._ops.rectified import release
from leanbayes._ops.sparse_block_plan import kernel_block
from leanbayes._ops.sparse_choice import DENSE, KERNELS, Kernels, choose, triton_takes
from leanbayes._ops.sparse_plan import Axis, Geometry
from leanbayes._ops.sparse_products import HalvesProduct, SparseProduct, halves_fit, in_autocast, innermost
from leanbayes._ops.sparse_triton import TritonProduct
from leanbayes.errors import InputError, ShapeMismatch, UnknownName

__all__ = [
    "batch_innermost",
    "conv",
    "conv_halves",
    "conv_moments",
    "geometry_of",
    "kernels_for",
    "linear",
    "linear_halves",
    "linear_moments",
    "watch",
    "watching",
]

Sizes = int | tuple[int, ...]
Watcher = Callable[[], Callable[[Tensor], None]]
_WATCHED: ContextVar[Mapping[int, Watcher]] = ContextVar("watched", default={})  # noqa: B039 - never changed
_DENSE_CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def batch_innermost(x: Tensor) -> Tensor:
    """Return the tensor with its first axis innermost in memory, without a copy if it is so already.

    >>> batch_innermost(torch.zeros(8, 3, 5, 5)).stride()
    (1, 200, 40, 8)
    """
    return innermost(x).movedim(-1, 0)


def linear(x: Tensor, index: Tensor, shape: tuple[int, ...], mean: Tensor, kernel: str = "auto") -> Tensor:
    """Return x Wᵀ.

    >>> linear(torch.tensor([[1.0, 2.0]]), torch.tensor([1, 2]), (2, 2), torch.tensor([10.0, 5.0]))
    tensor([[20.,  5.]])

    Args:
        x: the input, of shape (…, inputs).
        index: the sorted positions of the non-zeros in the flattened weight.
        shape: the shape of the weight, (outputs, inputs).
        mean: one value for each non-zero.
        kernel: "auto" chooses by `kernels_for`; "blocks", "csr", "dense", "numba", "triton" and "triton_atomic" force
            one.
    """
    return _linear(x, index, shape, mean, None, kernel)[0]


def linear_moments(
    x: Tensor, index: Tensor, shape: tuple[int, ...], mean: Tensor, variance: Tensor, kernel: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Return the mean x μᵀ and variance x² σ²ᵀ of the output, from one sweep over the non-zeros (SSVI, eq. 4)."""
    result = _linear(x, index, shape, mean, variance, kernel)
    return result[0], result[1]


def conv(
    x: Tensor,
    index: Tensor,
    shape: tuple[int, ...],
    mean: Tensor,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    kernel: str = "auto",
) -> Tensor:
    """Return x ∗ W for a weight with 1, 2 or 3 spatial axes, like `torch.nn.functional.conv2d` without a bias.

    >>> x, index = torch.ones(1, 1, 3, 3), torch.tensor([0, 4])
    >>> conv(x, index, (1, 1, 3, 3), torch.tensor([1.0, 10.0]), padding=1)
    tensor([[[[10., 10., 10.],
              [10., 11., 11.],
              [10., 11., 11.]]]])

    Args:
        x: the input, of shape (batch, inputs, …) or (inputs, …).
        index: the sorted positions of the non-zeros in the flattened weight.
        shape: the shape of the weight, (outputs, inputs / groups, …).
        mean: one value for each non-zero.
        stride: one number, or one for each axis.
        padding: one number, one for each axis, "same" or "valid".
        dilation: one number, or one for each axis.
        groups: the number of groups of channels; channels of different groups do not meet.
        kernel: "auto" chooses by `kernels_for`; "blocks", "dense", "numba", "triton" and "triton_atomic" force one.
    """
    return _conv(x, index, shape, mean, None, stride, padding, dilation, groups, kernel)[0]


def conv_moments(
    x: Tensor,
    index: Tensor,
    shape: tuple[int, ...],
    mean: Tensor,
    variance: Tensor,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    kernel: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Return the mean x ∗ μ and variance x² ∗ σ² of the output, from one sweep over the non-zeros (SSVI, eq. 4)."""
    result = _conv(x, index, shape, mean, variance, stride, padding, dilation, groups, kernel)
    return result[0], result[1]


def linear_halves(
    x: Tensor, index: Tensor, shape: tuple[int, ...], first: Tensor, second: Tensor, kernel: str = "auto"
) -> Tensor | None:
    """Return x W₁ᵀ for the first half of a batch of rows, and x W₂ᵀ for the second half, from one sweep.

    Both weights have the same non-zeros. The result is None where the kernel does not pay or does not fit: then two
    products, each of one half, are the way.
    """
    x = _cast(x, first)
    _check(x, index, shape, first, None)
    geometry = _geometry(tuple(shape), (), (), (), (), (), 1)
    result = None if x.dim() != 2 else _halves(x, first, second, index, geometry, kernel)
    if result is not None:
        watch(index, result, lambda g: g.t().to(x.dtype) @ x.detach())
    return result


def conv_halves(
    x: Tensor,
    index: Tensor,
    shape: tuple[int, ...],
    first: Tensor,
    second: Tensor,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    kernel: str = "auto",
) -> Tensor | None:
    """Return x ∗ W₁ for the first half of a batch and x ∗ W₂ for the second half, like `linear_halves`."""
    x = _cast(x, first)
    _check(x, index, shape, first, None)
    geometry, rank = _checked_geometry(x, shape, stride, padding, dilation, groups), len(shape) - 2
    result = None if x.dim() != rank + 2 else _halves(x, first, second, index, geometry, kernel)
    if result is not None:
        watch(index, result, lambda g: _dense_gradient(x.detach(), g.to(x.dtype), shape, geometry))
    return result


@contextmanager
def watching(watchers: Mapping[int, Watcher]) -> Iterator[None]:
    """Watch the weights of the products that are computed inside the ``with`` block.

    A watched weight shows the gradient of the whole dense weight, zeros included, which otherwise never exists.

    Args:
        watchers: a function for the ``id`` of each watched index. It is called at each product, and the function that
            it returns is called in the backward pass with the dense gradient.
    """
    token = _WATCHED.set(watchers)
    try:
        yield
    finally:
        _WATCHED.reset(token)


def watch(index: Tensor, result: Tensor, gradient: Callable[[Tensor], Tensor]) -> None:
    """In the backward pass, pass the dense gradient to the watcher of an index, if there is one.

    Args:
        index: the index of the weight.
        result: the result of a product by the weight.
        gradient: gives the gradient of the dense weight from the gradient of ``result``.
    """
    watcher = _WATCHED.get().get(id(index))
    if watcher is not None and result.requires_grad:
        receive = watcher()
        result.register_hook(lambda g: receive(gradient(g)))


def kernels_for(
    x: Tensor,
    index: Tensor,
    shape: tuple[int, ...],
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    moments: bool = False,
) -> Kernels:
    """Return the kernels that "auto" chooses for the forward pass and for the gradients of input and values.

    >>> str(kernels_for(torch.zeros(64, 64, 32, 32), torch.arange(369), (64, 64, 3, 3), padding=1, moments=True))
    'numba'
    """
    x = x if len(shape) > 2 else x.reshape(-1, x.shape[-1])
    return choose(x, index, geometry_of(x, shape, stride, padding, dilation, groups), moments)


def geometry_of(
    x: Tensor,
    shape: tuple[int, ...],
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Geometry:
    """Return the geometry of a linear map, if the weight has two axes, or of a convolution."""
    if len(shape) == 2:
        return _geometry(tuple(shape), (), (), (), (), (), 1)
    return _checked_geometry(x, shape, stride, padding, dilation, groups)


def _linear(
    x: Tensor, index: Tensor, shape: tuple[int, ...], mean: Tensor, variance: Tensor | None, kernel: str
) -> tuple[Tensor, ...]:
    x = _cast(x, mean)
    _check(x, index, shape, mean, variance)
    if len(shape) != 2 or x.dim() == 0 or x.shape[-1] != shape[1]:
        raise ShapeMismatch(f"a linear map by a weight of shape {tuple(shape)} cannot take {tuple(x.shape)}")
    geometry = _geometry(tuple(shape), (), (), (), (), (), 1)
    flat = x.reshape(-1, shape[1])
    kernels = _kernels(kernel, flat, index, geometry, variance is not None)
    if kernels == DENSE:
        results = [F.linear(flat, _dense(mean, index, shape))]
        if variance is not None:
            results.append(F.linear(flat.square(), _dense(variance, index, shape)))
    else:
        results = _products(flat, mean, variance, index, geometry, kernels)
    watch(index, results[0], lambda g: g.t().to(flat.dtype) @ flat.detach())
    return tuple(y.reshape(*x.shape[:-1], shape[0]) for y in results)


def _conv(
    x: Tensor,
    index: Tensor,
    shape: tuple[int, ...],
    mean: Tensor,
    variance: Tensor | None,
    stride: Sizes,
    padding: Sizes | str,
    dilation: Sizes,
    groups: int,
    kernel: str,
) -> tuple[Tensor, ...]:
    x = _cast(x, mean)
    _check(x, index, shape, mean, variance)
    geometry = _checked_geometry(x, shape, stride, padding, dilation, groups)
    rank = len(shape) - 2
    batch = x if x.dim() == rank + 2 else x.unsqueeze(0)
    kernels = _kernels(kernel, batch, index, geometry, variance is not None)
    if kernels == DENSE:
        convolve, options = _DENSE_CONVOLUTIONS[rank], (stride, padding, dilation, groups)
        results = [convolve(batch, _dense(mean, index, shape), None, *options)]
        if variance is not None:
            results.append(convolve(batch.square(), _dense(variance, index, shape), None, *options))
    else:
        results = _products(batch, mean, variance, index, geometry, kernels)
    watch(index, results[0], lambda g: _dense_gradient(batch.detach(), g.to(batch.dtype), shape, geometry))
    return tuple(results if x.dim() == rank + 2 else [y.squeeze(0) for y in results])


def _products(
    x: Tensor, mean: Tensor, variance: Tensor | None, index: Tensor, geometry: Geometry, kernels: Kernels
) -> list[Tensor]:
    """Return one or two products of shape (batch, outputs, …) for an input of shape (batch, inputs, …)."""
    if kernels.forward == "triton":
        return list(TritonProduct.apply(x, mean, variance, None, index, geometry, kernels))
    turned = innermost(x)
    sums = SparseProduct.apply(turned, mean, variance, index, geometry, kernels)
    release(x, turned, sums[0])
    return [_batch_first(y, x, geometry) for y in sums]


def _halves(x: Tensor, first: Tensor, second: Tensor, index: Tensor, geometry: Geometry, kernel: str) -> Tensor | None:
    """Return the product of each half of a batch by its weight, or None if no kernel takes both in one sweep."""
    kernels = _kernels(kernel, x, index, geometry, False)
    if not halves_fit(x, kernels):
        return None
    if kernels.forward == "triton":
        product: Tensor = TritonProduct.apply(x, first, None, second, index, geometry, kernels)[0]
        return product
    turned = innermost(x)
    sums: Tensor = HalvesProduct.apply(turned, first, second, index, geometry, kernels)
    release(x, turned, sums)
    return _batch_first(sums, x, geometry)


def _batch_first(sums: Tensor, x: Tensor, geometry: Geometry) -> Tensor:
    return sums.view(geometry.outputs, *geometry.positions[5 - x.dim() :], len(x)).movedim(-1, 0)


def _kernels(kernel: str, x: Tensor, index: Tensor, geometry: Geometry, moments: bool) -> Kernels:
    if kernel == "auto":
        return choose(x, index, geometry, moments)
    if kernel not in KERNELS:
        raise UnknownName.of("kernel", kernel, ["auto", *KERNELS])
    if kernel == "csr" and not geometry.is_linear:
        raise InputError('the kernel "csr" is for linear maps; choose "auto", "numba" or "dense" for a convolution')
    if kernel == "blocks" and not kernel_block(index, geometry):
        raise InputError(
            'the kernel "blocks" is for weights that are stored in blocks of 8 or 16 output channels; choose "auto"'
        )
    if kernel in ("blocks", "numba"):
        compiled.require(kernel)
    if kernel in ("triton", "triton_atomic"):
        gpu.require_triton(kernel, x)
        if not triton_takes(x, geometry):
            raise InputError(
                f'an activation of 2³¹ numbers is too large for the kernel "{kernel}", got an input of shape '
                f'{tuple(x.shape)}; choose "auto" or a smaller batch'
            )
    return KERNELS[kernel]


def _dense(values: Tensor, index: Tensor, shape: tuple[int, ...]) -> Tensor:
    return values.new_zeros(prod(shape)).index_copy(0, index.long(), values).view(shape)


def _dense_gradient(x: Tensor, g: Tensor, shape: tuple[int, ...], geometry: Geometry) -> Tensor:
    rank = len(shape) - 2
    axes = geometry.axes[3 - rank :]
    padded = F.pad(x, [size for axis in reversed(axes) for size in (axis.before, axis.after)])
    steps, gaps, none = [axis.stride for axis in axes], [axis.dilation for axis in axes], [0] * rank
    like = x.new_empty(1).expand(shape)
    of_weight: Tensor = torch.ops.aten.convolution_backward(
        g, padded, like, None, steps, none, gaps, False, none, geometry.groups, [False, True, False]
    )[1]
    return of_weight


def _cast(x: Tensor, mean: Tensor) -> Tensor:
    """Cast the input to the dtype of the values under autocast, where it has the precision of the layer before."""
    return x.to(mean.dtype) if in_autocast(x) else x


def _check(x: Tensor, index: Tensor, shape: tuple[int, ...], mean: Tensor, variance: Tensor | None) -> None:
    if index.dim() != 1 or index.dtype not in (torch.int32, torch.int64):
        raise InputError(f"index must be one row of int32 or int64, got {index.dtype} of shape {tuple(index.shape)}")
    for name, values in (("mean", mean), ("variance", variance)):
        if values is not None and values.shape != index.shape:
            raise ShapeMismatch(
                f"{name} has shape {tuple(values.shape)}, the index of its non-zeros {tuple(index.shape)}"
            )
        if values is not None and values.dtype != x.dtype:
            raise InputError(f"{name} is {values.dtype} and the input is {x.dtype}; convert one of them")
    if len(shape) < 2:
        raise ShapeMismatch(f"a weight needs at least two axes, outputs and inputs, got the shape {tuple(shape)}")


def _checked_geometry(
    x: Tensor, shape: tuple[int, ...], stride: Sizes, padding: Sizes | str, dilation: Sizes, groups: int
) -> Geometry:
    rank = len(shape) - 2
    if rank not in _DENSE_CONVOLUTIONS or x.dim() not in (rank + 1, rank + 2):
        raise ShapeMismatch(f"a convolution by a weight of shape {tuple(shape)} cannot take {tuple(x.shape)}")
    if groups < 1 or shape[0] % groups or x.shape[-rank - 1] != shape[1] * groups:
        raise ShapeMismatch(
            f"a weight of shape {tuple(shape)} in {groups} groups takes {shape[1] * groups} channels and gives a "
            f"multiple of {groups}, got {x.shape[-rank - 1]} channels"
        )
    strides, dilations = _for_each_axis(stride, rank), _for_each_axis(dilation, rank)
    if padding == "same":
        if any(s != 1 for s in strides):
            raise InputError(f'padding "same" needs stride 1, got {stride}')
        total = [d * (k - 1) for d, k in zip(dilations, shape[2:], strict=True)]
        before, after = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
    elif isinstance(padding, str):
        if padding != "valid":
            raise UnknownName.of("padding", padding, ["same", "valid"])
        before = after = (0,) * rank
    else:
        before = after = _for_each_axis(padding, rank)
    if min(*strides, *dilations) < 1 or min(before) < 0:
        raise InputError(f"stride {stride} and dilation {dilation} must be positive, padding {padding} not negative")
    return _geometry(tuple(shape), tuple(x.shape[-rank:]), strides, before, after, dilations, groups)


def _for_each_axis(value: Sizes, rank: int) -> tuple[int, ...]:
    values = (value,) * rank if isinstance(value, int) else tuple(value)
    if len(values) == 1:
        values *= rank
    if len(values) != rank:
        raise InputError(f"got {value} for {rank} axes; give one number, or one for each")
    return values


@lru_cache(1024)
def _geometry(
    shape: tuple[int, ...],
    sizes: tuple[int, ...],
    stride: tuple[int, ...],
    before: tuple[int, ...],
    after: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> Geometry:
    axes = [Axis(*axis) for axis in zip(sizes, shape[2:], stride, before, after, dilation, strict=True)]
    if any(axis.positions < 1 for axis in axes):
        raise ShapeMismatch(f"a kernel of shape {shape[2:]} does not fit into an input of {sizes}")
    first, second, third = [Axis(1)] * (3 - len(axes)) + axes
    return Geometry(shape[0], shape[1] * groups, groups, (first, second, third))
