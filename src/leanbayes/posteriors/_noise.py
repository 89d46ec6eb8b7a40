"""Standard Normal noise: that of torch, or for large CPU tensors that of a kernel which uses every core."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes._ops import mirrored
from leanbayes._ops.normal import draw, fill, has_kernel, pull_back, scale, seed_of, shift
from leanbayes._sharding import is_piece, piece_of

__all__ = ["mirrored_normal", "mirrored_normals", "normal_and_sums", "shifted_normal", "standard_normal"]

_TOGETHER = 2**14  # numbers of all small tensors from which a kernel is worth loading numba


def standard_normal(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw ξ ~ N(0, 1) with the dtype and device of ``like``, reproducibly from ``generator``.

    >>> standard_normal((2, 3), torch.zeros(1), torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3])

    Of a weight that is cut into pieces, every process draws the whole noise and takes its piece of it. So the processes
    must have generators in the same state, and the noise is that of the whole weight in one process.
    """
    if is_piece(like):
        plain = torch.empty((), dtype=like.dtype, device=like.device).expand(like.shape)
        noise: Tensor = piece_of(standard_normal(shape, plain, generator), like)
        return noise
    if has_kernel(like, math.prod(shape)):
        return fill(torch.empty(shape), seed_of(generator))
    if generator is None:  # ONNX has no form of the operation that takes a generator, not even None
        return torch.randn(shape, dtype=like.dtype, device=like.device)
    return torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator)


def shifted_normal(
    mean: Tensor, spread: Tensor, generator: torch.Generator | None, out: Tensor | None = None
) -> Tensor:
    """Draw μ + σξ with the ξ that `standard_normal` would give; a kernel does not store them."""
    if not _all_have_kernels(mean, spread, *([] if out is None else [out])):
        return torch.addcmul(mean, spread, standard_normal(spread.shape, spread, generator), out=out)
    if out is not None:
        return shift(mean, spread, seed_of(generator), out)
    drawn: Tensor = _Shifted.apply(mean, spread, seed_of(generator))
    return drawn


def normal_and_sums(mean: Tensor, rho: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor] | None:
    """Draw μ + σξ with σ = softplus(ρ), and sum (Σμ, Σμ², Σσ², Σ log σ), from which a KL follows.

    Both take one sweep over memory forward and one backward. The result is None where no kernel fits.
    """
    if not _all_have_kernels(mean, rho):
        return None
    drawn_and_sums: tuple[Tensor, Tensor] = _Drawn.apply(mean, rho, seed_of(generator))
    return drawn_and_sums


def mirrored_normal(mean: Tensor, rho: Tensor, noise: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return μ + σξ and μ − σξ with σ = softplus(ρ), or None where a function of our own cannot be differentiated.

    On large tensors both take one sweep over memory, and so do the gradients. On small ones it is a matter of fewer
    calls than a sample of ξ and one of −ξ would take.
    """
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
        return None
    pair: tuple[Tensor, Tensor] = _Mirrored.apply(mean, rho, noise)
    return pair


class _Mirrored(torch.autograd.Function):
    """μ + σξ and μ − σξ."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, rho: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Compute both, in one sweep over memory where there is a kernel."""
        ctx.save_for_backward(rho, noise)
        if mirrored.kernel_fits(mean, rho, noise):
            return mirrored.pair(mean, rho, noise)
        offset = F.softplus(rho, threshold=40).mul_(noise)
        return mean + offset, mean - offset

    @staticmethod
    def backward(ctx: Any, of_first: Tensor, of_second: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return g₊ + g₋, and (g₊ − g₋)ξ times dσ/dρ.

        A kernel takes one sweep. Where the gradient is itself differentiated, all operations are those of torch.
        """
        rho, noise = ctx.saved_tensors
        if torch.is_grad_enabled():
            return of_first + of_second, (of_first - of_second) * noise * rho.sigmoid(), None
        if mirrored.kernel_fits(rho, noise):
            return *mirrored.pull_back(of_first.contiguous(), of_second.contiguous(), rho, noise), None
        return of_first + of_second, (of_first - of_second).mul_(noise).mul_(rho.sigmoid()), None


def mirrored_normals(means: Sequence[Tensor], rhos: Sequence[Tensor], noise: Tensor) -> Sequence[Tensor]:
    """Return (μ + σξ, μ − σξ), stacked along a first axis, for many tensors of one type and device together.

    Small tensors need few calls of operations so: those of one large tensor.

    Args:
        means: the means μ of each tensor.
        rhos: the raw scales of each.
        noise: ξ of all of them, one after the other, as one flat tensor.
    """
    both: Sequence[Tensor] = _MirroredTogether.apply(noise, *means, *rhos)
    return both


class _MirroredTogether(torch.autograd.Function):
    """μ + σξ and μ − σξ of many tensors. A tensor that the loss does not depend on gets no gradient."""

    @staticmethod
    def forward(ctx: Any, noise: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Compute all pairs in one sweep over memory."""
        means, rhos = tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :]
        mean, rho = (torch.cat([tensor.reshape(-1) for tensor in every]) for every in (means, rhos))
        both = mean.new_empty(2, len(mean))
        if mirrored.kernel_fits(mean, rho, noise, least=_TOGETHER):
            mirrored.pair(mean, rho, noise, (both[0], both[1]))
        else:
            offset = F.softplus(rho, threshold=40).mul_(noise)
            torch.add(mean, offset, out=both[0])
            torch.sub(mean, offset, out=both[1])
        ctx.shapes = [tensor.shape for tensor in means]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(rho, noise, *rhos)
        parts = both.split([tensor.numel() for tensor in means], 1)
        return tuple([part.view(2, *tensor.shape) for part, tensor in zip(parts, means, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return g₊ + g₋, and (g₊ − g₋)ξ times dσ/dρ, of the tensors that have gradients.

        Where the gradient is itself differentiated, all operations are those of torch.
        """
        rho, noise, *rhos = ctx.saved_tensors
        sizes = [shape.numel() for shape in ctx.shapes]
        if torch.is_grad_enabled():
            return None, *_of_pairs(gradients, rhos, noise.split(sizes))
        used = [number for number, gradient in enumerate(gradients) if gradient is not None]
        if len(used) < len(gradients):
            raws, noises = rho.split(sizes), noise.split(sizes)
            rho, noise = (torch.cat([parts[number] for number in used]) for parts in (raws, noises))
        flat = torch.cat([g.reshape(2, -1) for g in gradients if g is not None], 1)
        first, second = flat[0], flat[1]
        if mirrored.kernel_fits(first, second, rho, noise, least=_TOGETHER):
            of_mean, of_rho = mirrored.pull_back(first, second, rho, noise)
        else:
            of_mean, of_rho = first + second, (first - second).mul_(noise).mul_(rho.sigmoid())
        results: list[Tensor | None] = [None] * (2 * len(sizes))
        lengths = [sizes[number] for number in used]
        for offset, values in ((0, of_mean), (len(sizes), of_rho)):
            for number, part in zip(used, values.split(lengths), strict=True):
                results[offset + number] = part.view(ctx.shapes[number])
        return None, *results


def _of_pairs(
    gradients: Sequence[Tensor | None], rhos: Sequence[Tensor], noises: Sequence[Tensor]
) -> list[Tensor | None]:
    """Return the gradients of means, then those of raw scales, as differentiable functions."""
    rows = list(zip(gradients, rhos, noises, strict=True))
    of_means = [None if g is None else g[0] + g[1] for g, _, _ in rows]
    of_rhos = [None if g is None else (g[0] - g[1]) * xi.view_as(r) * r.sigmoid() for g, r, xi in rows]
    return [*of_means, *of_rhos]


class _Drawn(torch.autograd.Function):
    """μ + σξ and the four sums."""

    @staticmethod
    def forward(mean: Tensor, rho: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """Compute the result in one sweep over memory."""
        return draw(mean, rho, seed)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:  # noqa: ARG004
        """Save the parameters; the backward pass computes noise and scales anew."""
        ctx.save_for_backward(*inputs[:2])
        ctx.seed = inputs[2]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, of_sums: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return g + g₁ + 2μg₂, and gξ + 2σg₃ + g₄/σ times dσ/dρ.

        This takes one sweep, or operations of torch where the gradient is itself differentiated.
        """
        mean, rho = ctx.saved_tensors
        gradient = gradient.contiguous()
        if not torch.is_grad_enabled():
            return *pull_back(gradient, of_sums, mean, rho, ctx.seed), None
        plain, square, variance, logarithm = of_sums.to(mean.dtype).unbind()
        spread = F.softplus(rho, threshold=40)
        of_spread = _Scaled.apply(gradient, ctx.seed) + 2 * variance * spread + logarithm / spread
        return gradient + plain + 2 * square * mean, of_spread * rho.sigmoid(), None


class _Shifted(torch.autograd.Function):
    """μ + σξ; the gradient with respect to σ is g·ξ, with the same ξ computed once more."""

    @staticmethod
    def forward(mean: Tensor, spread: Tensor, seed: int) -> Tensor:
        """Compute the result in one sweep over memory."""
        return shift(mean, spread, seed)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        """Save the seed, from which the backward pass makes the same noise."""
        ctx.seed = inputs[2]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        """Return g and g·ξ."""
        return gradient, _Scaled.apply(gradient, ctx.seed) if ctx.needs_input_grad[1] else None, None


class _Scaled(torch.autograd.Function):
    """g·ξ, which is linear in g: its gradient is itself."""

    @staticmethod
    def forward(gradient: Tensor, seed: int) -> Tensor:
        """Compute the result in one sweep over memory."""
        return scale(gradient.contiguous(), seed)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        """Save the seed, from which the backward pass makes the same noise."""
        ctx.seed = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Multiply by the same noise again."""
        return _Scaled.apply(gradient, ctx.seed), None


def _all_have_kernels(*tensors: Tensor) -> bool:
    return all(has_kernel(tensor, tensor.numel()) and tensor.is_contiguous() for tensor in tensors)
