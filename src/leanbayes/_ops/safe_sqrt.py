"""A root whose gradient is finite at zero, and Gaussian draws from mean and variance by it."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from leanbayes._ops.normal import has_kernel, in_memory_order, seed_of, spread

__all__ = ["SafeSqrt", "draw_normal"]


class SafeSqrt(torch.autograd.Function):
    """√v with gradient 0 at v = 0, where an output has no random weight and v does not move."""

    generate_vmap_rule = True

    @staticmethod
    def forward(variance: Tensor) -> Tensor:
        """√max(v, 0): a convolution by transforms may round below zero."""
        return variance.clamp_min(0).sqrt()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG004
        """Keep the root."""
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """G / 2√v, and 0 at 0."""
        (root,) = ctx.saved_tensors
        return torch.where(root > 0, gradient / (2 * root), 0)


def draw_normal(
    mean: Tensor, variance: Tensor, generator: torch.Generator | None = None, *, reuse: bool = False
) -> Tensor:
    """Independent numbers of these means and variances; gradients reach both.

    Large ones on the CPU are drawn in one sweep over memory, in its order, and can be differentiated once. With
    ``reuse`` that is the memory of mean and variance themselves, which nothing else may need: no gradient of what made
    them, nor the caller.
    """
    if _have_kernel(mean, variance):
        drawn: Tensor = _Spread.apply(mean, variance, seed_of(generator), reuse)
        return drawn
    noise = torch.randn(mean.shape, dtype=mean.dtype, device=mean.device, generator=generator)
    root: Tensor = SafeSqrt.apply(variance)
    return mean + root * noise


class _Spread(torch.autograd.Function):
    """μ + √v·ξ. The slope is kept in place of the variance."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, variance: Tensor, seed: int, reuse: bool) -> Tensor:
        """One sweep."""
        drawn, slope = spread(mean, variance, seed, slope=ctx.needs_input_grad[1], reuse=reuse)
        ctx.save_for_backward(slope)
        return drawn

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """g and g·ξ/2√v."""
        return gradient, ctx.saved_tensors[0] * gradient if ctx.needs_input_grad[1] else None, None, None


def _have_kernel(mean: Tensor, variance: Tensor) -> bool:
    """Whether both lie in memory in one order and without gaps."""
    if not (has_kernel(mean, mean.numel()) and has_kernel(variance, mean.numel())):
        return False
    alike = mean.shape == variance.shape and mean.stride() == variance.stride()
    return alike and in_memory_order(mean).is_contiguous()
