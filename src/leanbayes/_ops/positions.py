"""Statistics of tensors over their positions, which are the pixels of an image or the tokens of a text.

A statistic that is the same at all positions has length 1 along their axes: a fraction ρ of the variance, or the
loadings φ of the factors that units share (`leanbayes.propagate.moments.correlations` explains both).
"""

import torch
from torch import Tensor

from leanbayes._ops import innermost_moments
from leanbayes._ops.low_rank import for_linear_algebra, quotient

__all__ = [
    "factors_together",
    "folded",
    "fraction_of",
    "nearby_fraction",
    "neighbour_products",
    "pool_factor",
    "pooled",
    "position_axes",
    "ratio_along",
    "sampled_rows",
    "without_copies",
]

_ROWS = 8  # of positions, from which statistics are taken if there are more


def folded(weight: Tensor, shares: Tensor | None = None) -> Tensor:
    """Return Σ_k s_k w_oik: a filter summed over its offsets, which keep length 1; a matrix as it is.

    The shares s_k say how often an offset falls on the image; None stands for always. A filter that was summed before,
    with shares of mean 1, has a single offset and is only rescaled.
    """
    if weight.dim() == 2:
        return weight
    axes = tuple(range(2, weight.dim()))
    if shares is None:
        return weight.sum(axes, keepdim=True)
    if weight[0, 0].numel() < len(shares):
        return weight * shares.mean()
    return (weight.flatten(2) @ shares)[(..., *[None] * len(axes))]


def neighbour_products(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return the mean of x_p x_q over neighbouring positions p and q; over a sample of the rows if there are many."""
    if axes == (2, 3) and max(x.shape[2:]) > 1 and innermost_moments.takes(x):
        return innermost_moments.neighbour_products(x, _row_step(x.shape[2] - 1), _row_step(x.shape[2]))
    means = []
    for axis in axes:
        n = x.shape[axis]
        if n > 1:
            left, right = (sampled_rows(x.narrow(axis, start, n - 1), axes) for start in (0, 1))
            means.append((left * right).mean(axes, keepdim=True))
    return torch.stack(means).mean(0)


def nearby_fraction(common: Tensor, total: Tensor, rho: Tensor) -> Tensor:
    """Return the fraction that neighbours share of what not all positions share."""
    return ((quotient(common, total) - rho) / (1 - rho).clamp_min(1e-6)).clamp(0, 1)


def fraction_of(common: Tensor, total: Tensor) -> Tensor:
    """Return ρ = common / total, and 0 where there is no variance at all."""
    return common / torch.where(total > 0, total, 1)


def ratio_along(common: Tensor, total: Tensor, axes: tuple[int, ...]) -> Tensor | None:
    """Return ρ along ``axes`` from the variance that is shared and the whole; None if there is one position."""
    axes = tuple(axis for axis in axes if total.shape[axis] > 1)
    return fraction_of(common.mean(axes, keepdim=True), total.mean(axes, keepdim=True)) if axes else None


def factors_together(rows: list[Tensor], rank: int) -> Tensor | None:
    """Return the factors of several terms together, at most twice as many as a layer makes."""
    if not rows or any(row.shape[1:] != rows[0].shape[1:] for row in rows):
        return None
    loadings = torch.cat(rows)
    if len(loadings) > 2 * rank:
        with torch.no_grad():  # only chooses directions: those with the largest loadings
            flat = for_linear_algebra(loadings.movedim(0, 1).flatten(2))  # examples, factors, units
            turn = torch.linalg.eigh(flat @ flat.mT).eigenvectors[..., -2 * rank :].to(loadings.dtype)
        loadings = torch.einsum("bkm,kb...->mb...", turn, loadings)
    return loadings


def without_copies(value: Tensor) -> Tensor:
    """Return the tensor with length 1 along every axis of stride 0, which holds copies of one entry."""
    for axis, (n, step) in enumerate(zip(value.shape, value.stride(), strict=True)):
        if n > 1 and step == 0:
            value = value.narrow(axis, 0, 1)
    return value


def position_axes(value: Tensor, like: Tensor) -> tuple[int, ...]:
    """Return the axes of ``value`` along which loadings, or a fraction, are the same for all positions."""
    own = like.shape[like.dim() - value.dim() :]
    return tuple(axis for axis, (n, m) in enumerate(zip(value.shape, own, strict=True)) if m == 1 < n)


def sampled_rows(value: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return evenly spaced rows of the positions, which lie along ``axes``, if there are many: enough for means."""
    step = _row_step(value.shape[axes[0]]) if len(axes) > 1 else 1
    return value if step == 1 else value[(*[slice(None)] * axes[0], slice(None, None, step))]


def _row_step(rows: int) -> int:
    """Return the distance between the rows that are sampled."""
    return rows // _ROWS if rows >= 2 * _ROWS else 1


def pooled(value: Tensor, like: Tensor) -> Tensor:
    """Return the mean over the positions, where ``like`` has length 1; over a sample of rows if there are many."""
    axes = position_axes(value, like)
    return sampled_rows(value, axes).mean(axes, keepdim=True) if axes else value


def pool_factor(factor: Tensor, x: Tensor, loadings: Tensor) -> Tensor:
    """Return the mean over the positions of a factor that broadcasts over ``x``, unless it is the same at all."""
    own = [1] * (x.dim() - factor.dim()) + list(factor.shape)
    if all(m in (1, n) for m, n in zip(own, loadings.shape[1:], strict=True)):
        return factor
    return pooled(factor.expand(x.shape), loadings)
