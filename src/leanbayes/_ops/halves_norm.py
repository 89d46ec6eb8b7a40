"""Batch norm with statistics of the whole batch, and with other gains and offsets for each of its two halves.

Compiled kernels sweep over the activations twice forward (statistics, then γ(x − μ)/s + β) and twice backward. torch
would need a sweep more for each gain and offset, and its own sum over positions is much slower on the CPU.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes._ops import compiled
from leanbayes._ops.normal import has_kernel
from leanbayes._ops.threads import share_out

__all__ = ["halves_of", "kernel_fits", "norm_of_halves"]

_LEAST = 2**13  # numbers from which the kernels are worth their call
_FEWEST = 16  # positions of a channel, below which loops over positions are no vector instructions
_PIECE = 2**17  # numbers that a thread takes at a time; no result depends on it


def kernel_fits(x: Tensor) -> bool:
    """Return whether the kernels can norm these activations: large, contiguous, float32, with an axis of positions."""
    if not has_kernel(x, x.numel(), _LEAST) or x.dim() < 3 or not x.is_contiguous():
        return False
    if x.numel() < _FEWEST * x.shape[0] * x.shape[1]:
        return False
    return compiled.available()


def halves_of(count: int) -> tuple[int, int]:
    """Return the sizes of the halves of so many examples; the first is the larger one.

    >>> halves_of(5)
    (3, 2)
    """
    return (count + 1) // 2, count // 2


def norm_of_halves(
    x: Tensor,
    gains: tuple[Tensor, Tensor],
    offsets: tuple[Tensor, Tensor],
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
) -> Tensor:
    """Return γ(x − μ)/√(v + ε) + β, with γ and β of the half that an example belongs to, and update running statistics.

    Args:
        x: the activations, for which `kernel_fits` holds.
        gains: γ for the first and the second half.
        offsets: β for both.
        running_mean: the running mean of each channel, or None.
        running_var: the running variance, or None.
        momentum: how much of the running statistics this batch replaces.
        eps: ε.
    """
    mean, variance = _statistics(x.detach())
    count = x.numel() // x.shape[1]
    with torch.no_grad():
        if running_mean is not None:
            running_mean.lerp_(mean.to(running_mean), momentum)
        if running_var is not None:
            running_var.lerp_((variance * (count / (count - 1))).to(running_var), momentum)
    inverse = (variance + eps).rsqrt()
    normed: Tensor = _NormOfHalves.apply(x, *gains, *offsets, mean.float(), inverse.float(), eps)
    return normed


class _NormOfHalves(torch.autograd.Function):
    """γ(x − μ)/s + β with μ and s of the whole batch, on which the gradient depends too."""

    @staticmethod
    def forward(
        x: Tensor,
        gain: Tensor,
        other_gain: Tensor,
        offset: Tensor,
        other_offset: Tensor,
        mean: Tensor,
        inverse: Tensor,
        eps: float,  # noqa: ARG004
    ) -> Tensor:
        """Compute the result in one sweep."""
        slopes = [gain * inverse, other_gain * inverse]
        levels = zip((offset, other_offset), slopes, strict=True)
        offsets = [torch.addcmul(level, mean, slope, value=-1) for level, slope in levels]
        out = torch.empty_like(x)
        _run("affine", [x, _rows(slopes, len(x)), _rows(offsets, len(x)), out])
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        """Save the activations, the gains and offsets, and the statistics."""
        ctx.save_for_backward(*inputs[:7])
        ctx.eps = inputs[7]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients in two sweeps, or by operations of torch where they are themselves differentiated.

        With g the gradient, x̂ = (x − μ)/s and means over the batch, that of x is (γg − mean(γg) − x̂ mean(γg x̂))/s.
        """
        x, gain, other_gain, offset, other_offset, mean, inverse = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _by_torch(ctx, gradient, x, (gain, other_gain), (offset, other_offset))
        gradient, first = gradient.contiguous(), halves_of(len(x))[0]
        totals, products = torch.empty(len(x), len(mean)), torch.empty(len(x), len(mean))
        _run("sums", [gradient, x, totals, products], [mean])
        by_half = [
            [part.sum(0, dtype=torch.float64) for part in (values[:first], values[first:])]
            for values in (totals, products)
        ]
        of_offsets = [part.float() for part in by_half[0]]
        of_gains = [(part * inverse).float() for part in by_half[1]]
        of_x = None
        if ctx.needs_input_grad[0]:
            count = x.numel() // len(mean)
            level = (gain * by_half[0][0] + other_gain * by_half[0][1]) / count
            slant = (gain * by_half[1][0] + other_gain * by_half[1][1]) / count * inverse.double().square()
            bend, shift = -inverse * slant, inverse * (mean * slant - level)
            of_x = torch.empty_like(x)
            rows = _rows([gain * inverse, other_gain * inverse], len(x))
            _run("pull_back", [gradient, x, rows, of_x], [bend.float(), shift.float()])
        return of_x, *of_gains, *of_offsets, None, None, None


def _by_torch(
    ctx: Any, gradient: Tensor, x: Tensor, gains: tuple[Tensor, Tensor], offsets: tuple[Tensor, Tensor]
) -> tuple[Tensor | None, ...]:
    """Return the gradients as differentiable functions of all inputs."""
    shape = (1, -1, *[1] * (x.dim() - 2))
    normed = F.batch_norm(x, None, None, None, None, True, 0.0, ctx.eps)
    halves = zip(normed.split(halves_of(len(x))), gains, offsets, strict=True)
    whole = torch.cat([half * gain.view(shape) + offset.view(shape) for half, gain, offset in halves])
    inputs = (x, *gains, *offsets)
    wanted = [value for value, needed in zip(inputs, ctx.needs_input_grad, strict=False) if needed]
    found = iter(torch.autograd.grad(whole, wanted, gradient, create_graph=True))
    return *(next(found) if needed else None for needed in ctx.needs_input_grad[:5]), None, None, None


def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the biased variance of each channel, in float64.

    With the mean x̄ and the sum S of squares about it for each of n examples, the variance of k positions each is
    (mean of S)/k + Var(x̄).
    """
    means, squares = torch.empty(x.shape[:2]), torch.empty(x.shape[:2])
    _run("statistics", [x, means, squares])
    positions = x.numel() // means.numel()
    spread, mean = torch.var_mean(means.double(), 0, correction=0)
    return mean, squares.double().mean(0) / positions + spread


def _rows(pair: list[Tensor], count: int) -> Tensor:
    """Return a row for each of ``count`` examples."""
    return torch.cat([row.expand(number, -1) for row, number in zip(pair, halves_of(count), strict=True)])


def _run(name: str, tensors: list[Tensor], channels: list[Tensor] | None = None) -> None:
    """Call a kernel on pieces of the examples, in threads; all pieces get the tensors over channels.

    Args:
        name: the name of the kernel.
        tensors: its arguments whose first axis holds the examples.
        channels: its further arguments, one number for each channel.
    """
    from leanbayes._ops import halves_norm_kernels  # numba takes half a second, which other models need not wait for

    kernel: Callable[..., None] = getattr(halves_norm_kernels, name)
    arrays = [np.asarray(tensor.detach().flatten(2) if tensor.dim() > 2 else tensor.detach()) for tensor in tensors]
    shared = [np.asarray(tensor.detach()) for tensor in channels or ()]
    examples = max(1, _PIECE * len(arrays[0]) // arrays[0].size)

    def piece(start: int) -> None:
        kernel(*(array[start : start + examples] for array in arrays), *shared)

    share_out(piece, range(0, len(arrays[0]), examples))
