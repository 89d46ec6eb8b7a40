"""A square root whose gradient is finite at zero, and Gaussian draws from means and variances that use it."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from leanbayes._ops.normal import fill, has_kernel, in_memory_order, seed_of, spread
from leanbayes._sharding import is_piece, piece_of, settled

__all__ = ["SafeSqrt", "draw_normal"]


class SafeSqrt(torch.autograd.Function):
    """√v with gradient 0 at v = 0.

    An output that depends on no random weight has v = 0, and its v never changes.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(variance: Tensor) -> Tensor:
        """Return √max(v, 0), because a convolution by transforms may round a variance below zero."""
        return variance.clamp_min(0).sqrt()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG004
        """Save the root."""
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Return g / 2√v, and 0 at v = 0."""
        (root,) = ctx.saved_tensors
        return torch.where(root > 0, gradient / (2 * root), 0)


def draw_normal(
    mean: Tensor, variance: Tensor, generator: torch.Generator | None = None, *, reuse: bool = False
) -> Tensor:
    """Draw independent Normal numbers; gradients reach means and variances.

    Large tensors on the CPU take one sweep over memory, and their result can be differentiated once.

    Args:
        mean: the means.
        variance: the variances.
        generator: the source of random numbers; None for the global one of torch.
        reuse: whether the result may overwrite mean and variance. Then neither the caller nor the gradient of what
            computed them may need them.
    """
    if is_piece(mean) or is_piece(variance):
        return _draw_piece(settled(mean), settled(variance), generator)
    if _have_kernel(mean, variance):
        drawn: Tensor = _Spread.apply(mean, variance, seed_of(generator), reuse)
        return drawn
    if generator is None:  # torch has no randn with a generator, not even None, for sizes that are symbols in a trace
        noise = torch.randn(mean.shape, dtype=mean.dtype, device=mean.device)
    else:
        noise = torch.randn(mean.shape, dtype=mean.dtype, device=mean.device, generator=generator)
    root: Tensor = SafeSqrt.apply(variance)
    return mean + root * noise


def _draw_piece(mean: Tensor, variance: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw for outputs of which this process has a piece, with its piece of the noise of all of them."""
    plain = torch.empty((), dtype=mean.dtype, device=mean.device).expand(mean.shape)
    if has_kernel(plain, mean.numel()):
        noise = fill(torch.empty(mean.shape), seed_of(generator))
    else:
        noise = torch.randn(mean.shape, dtype=mean.dtype, device=mean.device, generator=generator)
    root: Tensor = SafeSqrt.apply(variance)
    drawn: Tensor = mean + root * piece_of(noise, mean)
    return drawn


class _Spread(torch.autograd.Function):
    """μ + √v·ξ; the backward pass needs the slope ξ/2√v and not the variance."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, variance: Tensor, seed: int, reuse: bool) -> Tensor:
        """Compute the draw and its slope in one sweep over memory."""
        drawn, slope = spread(mean, variance, seed, slope=ctx.needs_input_grad[1], reuse=reuse)
        ctx.save_for_backward(slope)
        return drawn

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return g and g·ξ/2√v."""
        return gradient, ctx.saved_tensors[0] * gradient if ctx.needs_input_grad[1] else None, None, None


def _have_kernel(mean: Tensor, variance: Tensor) -> bool:
    """Return whether a kernel fits: both lie in memory in the same order and without gaps."""
    if not (has_kernel(mean, mean.numel()) and has_kernel(variance, mean.numel())):
        return False
    alike = mean.shape == variance.shape and mean.stride() == variance.stride()
    return alike and in_memory_order(mean).is_contiguous()
