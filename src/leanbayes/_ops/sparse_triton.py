"""Products by sparse weights on a GPU as one differentiable function, by the kernels of Triton."""

from collections.abc import Callable
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from leanbayes._ops.sparse_choice import Kernels
from leanbayes._ops.sparse_plan import Geometry
from leanbayes._ops.sparse_products import counted
from leanbayes._ops.sparse_triton_launch import Launch

__all__ = ["TritonProduct"]


class TritonProduct(torch.autograd.Function):
    """m = op(x, μ), and v = op(x², σ²) if there are variances (SSVI, Li et al. 2024, eq. 4).

    With ``other``, the first half of the batch meets μ and the second half meets ``other``. The results can be
    differentiated once.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        mean: Tensor,
        variance: Tensor | None,
        other: Tensor | None,
        index: Tensor,
        geometry: Geometry,
        kernels: Kernels,
    ) -> tuple[Tensor, ...]:
        """Return one or two tensors of shape (batch, outputs, …) for x of shape (batch, inputs, …)."""
        launch = Launch.of(x, index, geometry)
        x = launch.laid(x)
        ctx.save_for_backward(x, mean, variance, other, index)
        ctx.launch, ctx.kernels = launch, kernels
        ctx.flops = 2 * len(index) * prod(geometry.positions) * len(x) * (1 if variance is None else 2)
        with counted(ctx.flops):
            return launch.forward(x, (mean,) if other is None else (mean, other), variance)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return opᵀ(g, μ) + 2x·opᵀ(q, σ²) for the input, and SSVI's eq. 5 for the values."""
        x, mean, variance, other, index = ctx.saved_tensors
        launch: Launch = ctx.launch
        g, *of_second = (launch.laid(gradient) for gradient in gradients)
        q = of_second[0] if of_second else None
        weights = (mean,) if other is None else (mean, other)
        of_input: Tensor | None = None
        of_values: tuple[Tensor | None, ...] = (None, None, None)
        if ctx.needs_input_grad[0]:
            with counted(ctx.flops):
                of_input = _INPUT_GRADIENTS[ctx.kernels.input](launch, index, x, weights, variance, g, q)
        if any(ctx.needs_input_grad[1:4]):
            with counted(ctx.flops):
                of_values = launch.value_gradients(x, g, q, len(weights))
        return of_input, *of_values, None, None, None


def _gathered(
    launch: Launch, index: Tensor, x: Tensor, weights: tuple[Tensor, ...], *rest: Any  # noqa: ARG001
) -> Tensor:  # fmt: skip
    return launch.input_gradient(x, weights, *rest)


def _added(
    launch: Launch, index: Tensor, x: Tensor, weights: tuple[Tensor, ...], *rest: Any  # noqa: ARG001
) -> Tensor:  # fmt: skip
    return launch.added_input_gradient(x, weights, *rest)


def _dense(
    launch: Launch,
    index: Tensor,
    x: Tensor,
    weights: tuple[Tensor, ...],
    variance: Tensor | None,
    g: Tensor,
    q: Tensor | None,
) -> Tensor:
    """Return the gradient of the input by the dense operation, where the transposed weight has too many columns."""
    parts = zip(x.chunk(len(weights)), g.chunk(len(weights)), weights, strict=True)
    halves = [_dense_back(launch.geometry, index, *part) for part in parts]
    result = halves[0] if len(weights) == 1 else torch.cat(halves)
    if variance is not None and q is not None:
        result = result.addcmul(x, _dense_back(launch.geometry, index, x, q, variance), value=2)
    return launch.laid(result)


def _dense_back(geometry: Geometry, index: Tensor, x: Tensor, g: Tensor, values: Tensor) -> Tensor:
    axes = geometry.axes[5 - x.dim() :]
    shape = (geometry.outputs, geometry.inputs // geometry.groups, *(axis.taps for axis in axes))
    weight = values.new_zeros(prod(shape)).index_copy_(0, index.long(), values.detach()).view(shape)
    if not axes:
        return g @ weight
    before, gaps, steps = [a.before for a in axes], [a.dilation for a in axes], [a.stride for a in axes]
    none, even = [0] * len(axes), all(a.before == a.after for a in axes)
    padded = x if even else F.pad(x, [size for a in reversed(axes) for size in (a.before, a.after)])
    result: Tensor = torch.ops.aten.convolution_backward(
        g, padded, weight, None, steps, before if even else none, gaps, False, none, geometry.groups,
        [True, False, False],
    )[0]  # fmt: skip
    for number, axis in enumerate(axes):
        result = result if even else result.narrow(2 + number, axis.before, axis.size)
    return result


_INPUT_GRADIENTS: dict[str, Callable[..., Tensor]] = {"triton": _gathered, "triton_atomic": _added, "dense": _dense}
