"""Standard Normal noise: torch's own, or for large CPU tensors that of a kernel that uses every core."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes.ops.normal import fill, scale, shift

__all__ = ["shifted_normal", "standard_normal"]

_LARGE = 2**17  # numbers from which a kernel is worth its call


def standard_normal(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """ξ ~ N(0, 1) with the dtype and device of ``like``, reproducible from ``generator``.

    >>> standard_normal((2, 3), torch.zeros(1), torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3])
    """
    if _has_kernel(like, math.prod(shape)):
        return fill(torch.empty(shape), _seed(generator))
    return torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator)


def shifted_normal(
    mean: Tensor, spread: Tensor, generator: torch.Generator | None, out: Tensor | None = None
) -> Tensor:
    """μ + σξ with the ξ that `standard_normal` would give, which are not stored where a kernel computes them."""
    tensors = [tensor for tensor in (mean, spread, out) if tensor is not None]
    if not all(_has_kernel(tensor, mean.numel()) and tensor.is_contiguous() for tensor in tensors):
        return torch.addcmul(mean, spread, standard_normal(spread.shape, spread, generator), out=out)
    if out is not None:
        return shift(mean, spread, _seed(generator), out)
    drawn: Tensor = _Shifted.apply(mean, spread, _seed(generator))
    return drawn


class _Shifted(torch.autograd.Function):
    """μ + σξ; the gradient with respect to σ is g·ξ, with the same ξ computed once more."""

    @staticmethod
    def forward(mean: Tensor, spread: Tensor, seed: int) -> Tensor:
        """One sweep."""
        return shift(mean, spread, seed)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        """The seed is all that is kept."""
        ctx.seed = inputs[2]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        """g and g·ξ."""
        return gradient, _Scaled.apply(gradient, ctx.seed) if ctx.needs_input_grad[1] else None, None


class _Scaled(torch.autograd.Function):
    """g·ξ, which is linear in g: its gradient is itself."""

    @staticmethod
    def forward(gradient: Tensor, seed: int) -> Tensor:
        """One sweep."""
        return scale(gradient.contiguous(), seed)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        """The seed is all that is kept."""
        ctx.seed = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """The same noise again."""
        return _Scaled.apply(gradient, ctx.seed), None


def _seed(generator: torch.Generator | None) -> int:
    return int(torch.randint(2**63 - 1, (), generator=generator))


def _has_kernel(tensor: Tensor, size: int) -> bool:
    """Whether it is large, plain, float32 and in main memory, and nothing traces or transforms this call."""
    if tensor.device.type != "cpu" or tensor.dtype != torch.float32 or size < _LARGE:
        return False
    if type(tensor) not in (Tensor, nn.Parameter) or torch.compiler.is_compiling():
        return False
    return torch._C._functorch.peek_interpreter_stack() is None
