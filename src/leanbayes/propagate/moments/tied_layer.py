"""What a linear layer does to what units and neighbouring positions have in common.

With C the covariance of what is common in the input (a few factors, and on the diagonal the rest), the output has
C_out = W̄ C W̄ᵀ, where W̄ is the layer's matrix, of a filter the sum over its offsets. C_out is cut back to a few factors
by Nyström's formula C_out Ω (Ωᵀ C_out Ω)⁻¹ Ωᵀ C_out with directions Ω, its diagonal corrects the variance, and what
the layer's own noise adds is common to positions, not to units. Positions enter by their means alone.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.propagate.linear_ops import channel_axis
from leanbayes.propagate.moments.boxes import shares_of
from leanbayes.propagate.moments.spread import Dense, Spread
from leanbayes.propagate.moments.tensor import MomentTensor, Ties
from leanbayes.propagate.moments.ties import bounded, local, over, root, some, wide

__all__ = ["Layer", "tie"]

_LEAST = 1e-5  # is added to the covariance of the directions, whose mean variance is 1, so that it has an inverse


class Layer(NamedTuple):
    """A linear layer that has been applied: its operation and input, its weight and the noise of that."""

    operation: Callable[..., Tensor]
    input: Any
    weight: Tensor
    square: Tensor | None
    spread: Spread | None
    bias_variance: Tensor | None
    arguments: tuple[Any, ...] = ()
    options: dict[str, Any] = {}  # noqa: RUF012
    means: tuple[Tensor, Tensor, Tensor] | None = None


def tie(made: MomentTensor, layer: Layer) -> MomentTensor:
    """The output of a layer, ``made`` as if units were independent, with its ties and what they change."""
    x = layer.input
    mean = x.expected if isinstance(x, MomentTensor) else x
    channel = channel_axis(layer.operation, mean)
    axes = tuple(range(channel + 1, mean.dim()))
    if layer.operation is F.linear:
        axes = tuple(a for a in range(mean.dim() - 1) if a != made.setting.examples) if mean.dim() > 2 else ()
    several = any(mean.shape[axis] > 1 for axis in axes)
    window = tuple(layer.weight.shape[2:])
    shares = shares_of(layer.operation, mean, window, layer.arguments, layer.options)
    if made.setting.rank == 0 or shares is None or (several and made.setting.positions == "independent"):
        return made
    images = several and layer.operation is not F.linear

    def pool(value: Tensor) -> Tensor:
        """Means over the positions, with the units on the last axis."""
        return (value.mean(axes, keepdim=True) if several else value).movedim(channel, -1)

    def back(value: Tensor) -> Tensor:
        return value.movedim(-1, channel)

    spread = common = everywhere = None  # the variance of the input, and what neighbours, and all, have in common of it
    if isinstance(x, MomentTensor):
        spread = pool(x.variance) if layer.means is None else layer.means[2].movedim(channel, -1)
        common = everywhere = spread
        if several:
            near = local(x)
            common = None if near is None else pool(near) * spread
            everywhere = None if x.shared is None else pool(x.shared) * spread
    if common is None and not images:
        return made
    fresh = fresh_near = mean.new_zeros([1] * mean.dim())
    if layer.spread is not None:
        if isinstance(layer.spread, Dense):
            folded = _folded(layer.spread.variance, shares)
        else:
            folded = layer.spread.folded(layer.operation, shares).flatten(1)
        square = pool(mean.square()) if layer.means is None else layer.means[1].movedim(channel, -1)
        fresh = _times(square if spread is None else square + spread, folded)
        if images:
            pairs = _neighbours(mean, axes).movedim(channel, -1)
            fresh_near = _times(pairs if common is None else pairs + common, folded)
    if layer.bias_variance is not None:
        fresh, fresh_near = fresh + layer.bias_variance, fresh_near + layer.bias_variance
    total = fresh
    if spread is not None and layer.square is not None:
        squares = _folded(layer.square, shares)
        total = fresh + _times(spread, squares)
    if spread is None or common is None or everywhere is None:
        return made if made.shared is None else made.tied(Ties(None, _near(back(fresh_near), back(total), made.shared)))

    within = _times(common, squares)
    loadings = None if x.ties is None or x.ties.loadings is None else x.ties.loadings.movedim(1 + channel, -1)
    passed, factors = _through(_folded(layer.weight, shares), spread, common, loadings, made.setting.rank)
    corrected = (total - within + passed).clamp_min(0)
    correction = over(corrected, total)
    fraction, near = None, None
    if made.shared is not None:
        held = over(passed - within, corrected) * over(_times(everywhere, squares), within)
        fraction = (over(made.shared, back(correction)) + back(held)).clamp(0, 1)
        if images:
            near = _near(back(fresh_near + passed), back(corrected), fraction)
    found = bounded(factors, root(over(torch.ones_like(corrected), corrected))).movedim(-1, 1 + channel)
    variance = made.variance
    if torch.is_grad_enabled():
        variance = variance * back(correction)
    else:  # the layer's own, and of nobody else yet
        variance.mul_(back(correction))
    return made.like(made.expected, variance, fraction).tied(Ties(found, near))


def _through(w: Tensor, spread: Tensor, common: Tensor, loadings: Tensor | None, rank: int) -> tuple[Tensor, Tensor]:
    """The diagonal of W C Wᵀ, and factors F with FᵀF ≈ W C Wᵀ.

    ``w`` is (out, in), ``spread`` and ``common`` (..., in) the variance and what is common of it, ``loadings``
    (factors, ..., in).
    """
    alone, factors = common, None
    if loadings is not None:
        factors = loadings * root(spread)
        alone = (common - factors.square().sum(0)).clamp_min(0)
    diagonal = _times(alone, w.square())
    q = w.mT @ _directions(w, min(rank, *w.shape))
    z = alone.unsqueeze(-2) * q.mT  # (C WᵀΩ)ᵀ: ..., directions, in
    if factors is not None:
        diagonal = diagonal + _times(factors, w).square().sum(0)
        z = z + torch.einsum("f...i,f...k->...ki", factors, _times(factors, q.mT))
    y, inner = wide(_times(z, w)), wide(_times(z, q.mT))
    size = inner.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    noisy = size > 1e-30
    size = torch.where(noisy, size, 1)
    eye = torch.eye(inner.shape[-1], dtype=inner.dtype, device=inner.device)
    triangle, _ = torch.linalg.cholesky_ex(torch.where(noisy, inner / size, eye) + _LEAST * eye)
    inverse = torch.linalg.solve_triangular(
        triangle, eye.expand_as(triangle), upper=False
    )  # small: the rest is a product
    found = inverse @ torch.where(noisy, y * size.rsqrt(), 0)
    return diagonal, found.movedim(-2, 0).to(w.dtype)


def _times(value: Tensor, matrix: Tensor) -> Tensor:
    """value @ matrixᵀ as one product: with axes that cannot be merged torch would make one for each example."""
    return F.linear(value.reshape(-1, value.shape[-1]), matrix).view(*value.shape[:-1], len(matrix))


def _directions(w: Tensor, rank: int) -> Tensor:
    """About the largest left singular vectors of W: one step of power iteration from fixed numbers."""
    found = w @ (w.mT @ _start(w.shape[0], rank).to(w))
    with torch.no_grad():  # only the space that they span matters
        triangle = torch.linalg.qr(wide(found), mode="r").R
        least = triangle.diagonal().abs().max() * 1e-6 + 1e-30
        signs = torch.where(triangle.diagonal() < 0, -1.0, 1.0).to(triangle)
        inverse = torch.linalg.inv(triangle + torch.diag(least * signs)).to(w.dtype)
    directions: Tensor = found @ inverse
    return directions


@functools.cache
def _start(n: int, rank: int) -> Tensor:
    return torch.randn(n, rank, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def _folded(w: Tensor, shares: Tensor) -> Tensor:
    """The sum over the offsets of a filter, each as often as it falls on the image; or summed before (`boxes`)."""
    if w.dim() > 2 and w[0, 0].numel() < len(shares):
        return w.flatten(1) * shares.mean()
    return w if w.dim() == 2 else w.flatten(2) @ shares


def _neighbours(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The mean of x_p x_q over neighbouring positions p and q; in some of the rows, where there are many."""
    found = []
    for axis in axes:
        n = x.shape[axis]
        if n > 1:
            one, other = (some(x.narrow(axis, start, n - 1), axes) for start in (0, 1))
            found.append((one * other).mean(axes, keepdim=True))
    return torch.stack(found).mean(0)


def _near(common: Tensor, total: Tensor, shared: Tensor) -> Tensor:
    """Of what is not common to all positions, the part that is to neighbours."""
    return ((over(common, total) - shared) / (1 - shared).clamp_min(1e-6)).clamp(0, 1)
