"""A root whose gradient is finite at zero, and Gaussian draws from mean and variance by it."""

from typing import Any

import torch
from torch import Tensor

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


def draw_normal(mean: Tensor, variance: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Independent numbers of these means and variances; gradients reach both."""
    noise = torch.randn(mean.shape, dtype=mean.dtype, device=mean.device, generator=generator)
    root: Tensor = SafeSqrt.apply(variance)
    return mean + root * noise
