"""The variance after a linear layer whose input and weight are random, with little memory for the backward pass."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from leanbayes._ops.matrix_products import against_rows, times_matrix
from leanbayes._ops.moments import pull_back_square, square

__all__ = ["Geometry", "layer_variance", "second_moment"]

Geometry = tuple[Any, ...]
"""Stride, padding, dilation, whether transposed, output padding and groups; empty for `F.linear`."""


def second_moment(x: Tensor, x_variance: Tensor, swept: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return x² + σ_x² and the sums over positions as `square` has computed them, with their gradient."""
    result: tuple[Tensor, Tensor] = _Square.apply(x, x_variance, *swept)
    return result


def layer_variance(
    x: Tensor,
    x_variance: Tensor,
    w: Tensor,
    w_square: Tensor,
    w_variance: Tensor,
    scales: Tensor | None,
    of_scales: Callable[[Tensor], Tensor] | None,
    b_variance: Tensor | None,
    geometry: Geometry,
    swept: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """Return op(x² + σ_x², σ_w²) + op(σ_x², w²) + σ_b², and the sums over positions.

    Only x, σ_x², w and the scales are kept for the backward pass; it computes x² + σ_x², w² and σ_w² again.

    Args:
        x: The mean of the input.
        x_variance: The variance of the input.
        w: The mean of the weight.
        w_square: w².
        w_variance: The variance of the weight.
        scales: The tensor of which the variance of the weight is a function; None if it has no such function.
        of_scales: That function.
        b_variance: The variance of the bias, or None.
        geometry: The arguments of the convolution.
        swept: x² + σ_x² and the sums over positions, as `square` returns them.
    """
    known = geometry, of_scales, w_square.detach(), w_variance.detach(), *swept
    source = w_variance if scales is None else scales
    result: tuple[Tensor, Tensor] = _Variance.apply(x, x_variance, w, source, b_variance, *known)
    return result


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, x_variance: Tensor, second: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG004
        return second.view_as(second), sums.view_as(sums)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004
        ctx.save_for_backward(inputs[0])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, of_second: Tensor, of_sums: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        return *pull_back_square(x, of_second, torch.zeros_like(x), of_sums), None, None


class _Variance(torch.autograd.Function):
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
        variance = _apply(second, w_variance, b_variance, geometry)
        return variance.add_(_apply(x_variance, w_square, None, geometry)), sums.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004
        x, x_variance, w, scales, b_variance, geometry, of_scales, *_ = inputs
        ctx.save_for_backward(x, x_variance, w, scales)
        ctx.geometry, ctx.of_scales, ctx.bias = geometry, of_scales, b_variance is not None

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor, of_sums: Tensor) -> tuple[Tensor | None, ...]:
        x, x_variance, w, scales = ctx.saved_tensors
        into_x = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        into_w, into_scales = ctx.needs_input_grad[2], ctx.needs_input_grad[3]
        second = x  # if no gradient goes to the scales, only its shape matters
        if into_scales:
            swept = square(x, x_variance)
            second = x.square() + x_variance if swept is None else swept[0]
        with torch.enable_grad():
            scales = scales.detach().requires_grad_(into_scales)
            w_variance = scales if ctx.of_scales is None else ctx.of_scales(scales)
        of_second, of_scales = _backward(gradient, second, w_variance.detach(), ctx.geometry, into_x, into_scales)
        if of_scales is not None and ctx.of_scales is not None:
            (of_scales,) = torch.autograd.grad(w_variance, scales, of_scales)
        of_passed, of_square = _backward(gradient, x_variance, w.square(), ctx.geometry, into_x, into_w)
        of_x, of_variance = None, None
        if of_second is not None and of_passed is not None:
            of_x, of_variance = pull_back_square(x, of_second, of_passed, of_sums)
        of_w = None if of_square is None else of_square.mul_(2).mul_(w)
        of_bias = None
        if ctx.bias and ctx.needs_input_grad[4]:
            channel = -1 if not ctx.geometry else 1
            of_bias = gradient.sum([axis for axis in range(gradient.dim()) if axis != channel % gradient.dim()])
        return of_x, of_variance, of_w, of_scales, of_bias, *[None] * 6


def _apply(x: Tensor, w: Tensor, b: Tensor | None, geometry: Geometry) -> Tensor:
    if not geometry:
        return times_matrix(x, w, b)
    stride, padding, dilation, transposed, output_padding, groups = geometry
    return torch.convolution(x, w, b, stride, padding, dilation, transposed, output_padding, groups)


def _backward(
    gradient: Tensor, x: Tensor, w: Tensor, geometry: Geometry, into_x: bool, into_w: bool
) -> tuple[Tensor | None, Tensor | None]:
    if not geometry:
        return (times_matrix(gradient, w.mT) if into_x else None), (against_rows(gradient, x) if into_w else None)
    mask = [into_x, into_w, False]
    of_x, of_w, _ = torch.ops.aten.convolution_backward(gradient, x, w, None, *geometry, mask)
    return of_x, of_w
