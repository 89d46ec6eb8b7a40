"""The variance after a linear layer whose input and weight are both random, with the least memory and work."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes._ops.moments import add_turned, pull_back_square, square
from leanbayes.propagate.linear_ops import Operation, for_each_axis
from leanbayes.propagate.moments.spread import Dense, Spread

__all__ = ["Means", "variance_of_layer"]

Means = tuple[Tensor, Tensor, Tensor]
"""The means over positions of x, x² and σ², which `shared.linear_fraction` needs."""

_CONVOLUTIONS: dict[Any, tuple[int, bool]] = {
    F.conv1d: (1, False),
    F.conv2d: (2, False),
    F.conv3d: (3, False),
    F.conv_transpose1d: (1, True),
    F.conv_transpose2d: (2, True),
    F.conv_transpose3d: (3, True),
}
_IMAGES = (F.conv2d, F.conv_transpose2d)


def variance_of_layer(
    operation: Operation,
    x: Tensor,
    x_variance: Tensor,
    w: Tensor,
    w_square: Tensor,
    w_spread: Spread,
    b_variance: Tensor | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Tensor, Means | None]:
    """op(x² + σ_x², σ_w²) + op(σ_x², w²) + σ_b², and the means over positions, where they came with it."""
    geometry = _geometry(operation, args, kwargs)
    positions = (operation is F.linear and x.dim() == 3) or (operation in _IMAGES and x.dim() == 4)
    ready = square(x, x_variance) if positions else None
    if ready is None:
        second = x.square() + x_variance
        passed = operation(x_variance, w_square, b_variance, *args, **kwargs)
        return passed + w_spread.product(operation, second, args, kwargs), None
    if isinstance(w_spread, Dense) and geometry is not None:
        scales = w_spread.variance if w_spread.scales is None else w_spread.scales
        known = geometry, w_spread.of_scales, w_square.detach(), w_spread.variance.detach(), *ready
        variance, sums = _Variance.apply(x, x_variance, w, scales, b_variance, *known)
    else:
        second, sums = _Square.apply(x, x_variance, *ready)
        variance = operation(x_variance, w_square, b_variance, *args, **kwargs)
        found = w_spread.product(operation, second, args, kwargs)
        variance = add_turned(variance, found)
    count = x.numel() // (sums.shape[0] * sums.shape[2])
    shape = (x.shape[0], -1, 1, 1) if x.dim() == 4 else (x.shape[0], 1, -1)
    plain, squares, spread = (part.view(shape) / count for part in sums.unbind(1))
    return variance, (plain, squares, spread)


Geometry = tuple[Any, ...]
"""Stride, padding, dilation, whether transposed, output padding and groups; empty for `F.linear`."""


def _geometry(operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Geometry | None:
    """The arguments of a convolution as its backward pass takes them; None where they are spelled otherwise."""
    if operation is F.linear:
        return ()
    rank, transposed = _CONVOLUTIONS[operation]
    names = "stride padding output_padding groups dilation" if transposed else "stride padding dilation groups"
    usual: dict[str, Any] = {"stride": 1, "padding": 0, "output_padding": 0, "groups": 1, "dilation": 1}
    given = usual | dict(zip(names.split(), args, strict=False)) | kwargs
    if isinstance(given["padding"], str):
        return None
    each = {n: for_each_axis(given[n], rank) for n in ("stride", "padding", "dilation", "output_padding")}
    return (each["stride"], each["padding"], each["dilation"], transposed, each["output_padding"], given["groups"])


class _Square(torch.autograd.Function):
    """x² + σ_x² and the sums over positions, as they have been computed, with their gradient."""

    @staticmethod
    def forward(x: Tensor, x_variance: Tensor, second: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG004
        """What is ready."""
        return second.view_as(second), sums.view_as(sums)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004
        """Keep the input alone."""
        ctx.save_for_backward(inputs[0])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, of_second: Tensor, of_sums: Tensor) -> tuple[Tensor | None, ...]:
        """One sweep."""
        (x,) = ctx.saved_tensors
        return *pull_back_square(x, of_second, torch.zeros_like(x), of_sums), None, None


class _Variance(torch.autograd.Function):
    """Keeps x, σ_x², w and σ_w alone: x² + σ_x², w² and σ_w² are made again in the backward pass."""

    @staticmethod
    def forward(
        x: Tensor,  # noqa: ARG004
        x_variance: Tensor,
        w: Tensor,  # noqa: ARG004
        scales: Tensor,  # noqa: ARG004
        b_variance: Tensor | None,
        geometry: Geometry,
        of_scales: Callable[[Tensor], Tensor] | None,  # noqa: ARG004
        w_square: Tensor,
        w_variance: Tensor,
        second: Tensor,
        sums: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The two products, one added to the other."""
        variance = _apply(second, w_variance, b_variance, geometry)
        return variance.add_(_apply(x_variance, w_square, None, geometry)), sums.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004
        """Keep what cannot be made again."""
        x, x_variance, w, scales, b_variance, geometry, of_scales, *_ = inputs
        ctx.save_for_backward(x, x_variance, w, scales)
        ctx.geometry, ctx.of_scales, ctx.bias = geometry, of_scales, b_variance is not None

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor, of_sums: Tensor) -> tuple[Tensor | None, ...]:
        """Two backward passes of the operation, and one sweep that joins them."""
        x, x_variance, w, scales = ctx.saved_tensors
        into_x = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        into_w, into_spread = ctx.needs_input_grad[2], ctx.needs_input_grad[3]
        second = x  # only its shape matters, where no gradient goes to the scales
        if into_spread:
            ready = square(x, x_variance)
            second = x.square() + x_variance if ready is None else ready[0]
        with torch.enable_grad():
            scales = scales.detach().requires_grad_(into_spread)
            w_variance = scales if ctx.of_scales is None else ctx.of_scales(scales)
        of_second, of_spread = _backward(gradient, second, w_variance.detach(), ctx.geometry, into_x, into_spread)
        if of_spread is not None and ctx.of_scales is not None:
            (of_spread,) = torch.autograd.grad(w_variance, scales, of_spread)
        of_passed, of_square = _backward(gradient, x_variance, w.square(), ctx.geometry, into_x, into_w)
        of_x, of_variance = None, None
        if of_second is not None and of_passed is not None:
            of_x, of_variance = pull_back_square(x, of_second, of_passed, of_sums)
        of_w = None if of_square is None else of_square.mul_(2).mul_(w)
        of_bias = None
        if ctx.bias and ctx.needs_input_grad[4]:
            channel = -1 if not ctx.geometry else 1
            of_bias = gradient.sum([axis for axis in range(gradient.dim()) if axis != channel % gradient.dim()])
        return of_x, of_variance, of_w, of_spread, of_bias, *[None] * 6


def _apply(x: Tensor, w: Tensor, b: Tensor | None, geometry: Geometry) -> Tensor:
    if not geometry:
        return F.linear(x, w, b)
    stride, padding, dilation, transposed, output_padding, groups = geometry
    return torch.convolution(x, w, b, stride, padding, dilation, transposed, output_padding, groups)


def _backward(
    gradient: Tensor, x: Tensor, w: Tensor, geometry: Geometry, into_x: bool, into_w: bool
) -> tuple[Tensor | None, Tensor | None]:
    if not geometry:
        of_w = gradient.flatten(0, -2).mT @ x.flatten(0, -2) if into_w else None
        return (gradient @ w if into_x else None), of_w
    mask = [into_x, into_w, False]
    of_x, of_w, _ = torch.ops.aten.convolution_backward(gradient, x, w, None, *geometry, mask)
    return of_x, of_w
