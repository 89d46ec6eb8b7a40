"""What ties the noise of one unit to that of another: factors that units have in common.

Units of a layer are correlated through their common noisy input: Cov(Wx) = W Cov(x) Wᵀ is not diagonal, and in a
trained network what is off the diagonal adds up: without it a trained perceptron has 0.73 of the true standard
deviation, with 8 factors 0.98 (`docs/results/moments_accuracy.json`, where a transformer is worst: 0.74).

So number c of a tensor is m_c + √V_c (Σ_k φ_kc ε_k + a rest of its own) with a few standard normal ε_k that all units
have in common: φ are the ``loadings``. A linear layer makes them (`leanbayes.propagate.moments.tied_layer`), other
operations carry them on as far as they can; what is not carried on stays in the variance, taken as independent. The
terms of a sum, and tensors that are joined, are taken to have factors of their own.

Where positions share a filter, the factors are of the noise that neighbouring positions have in common, and are the
same for all positions: nothing here but sums over positions is of full size.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from leanbayes._ops.safe_sqrt import SafeSqrt
from leanbayes.propagate.moments.tensor import Averages, MomentTensor, Ties

__all__ = [
    "after_activation", "after_norm", "averaged", "bounded", "joined", "level", "local", "noise_of_deviations", "over",
    "pooled", "positions", "rearranged", "root", "scaled", "some", "summed", "wide",
]  # fmt: skip

_NOTHING = 1e-30
_ROWS = 8  # of positions that statistics are taken from, if there are more


def local(x: MomentTensor) -> Tensor | None:
    """The fraction of the variance that neighbouring positions have in common: ρ + (1 - ρ)·near."""
    if x.ties is None or x.ties.near is None or x.shared is None:
        return x.shared
    return x.shared + (1 - x.shared) * x.ties.near


def scaled(x: MomentTensor, factor: Any, variance: Tensor, averages: Averages | None = None) -> Ties | None:
    """The ties of about ``factor``·x, whose variance is ``variance``, with these ``averages``."""
    if x.ties is None or x.ties.loadings is None:
        return x.ties
    loadings = x.ties.loadings
    if isinstance(factor, Tensor):
        factor = _fitted(factor, x, loadings)
    return _passed(x.ties, factor, level(x.variance, x.averages, loadings), level(variance, averages, loadings))


def _passed(ties: Ties, factor: Any, before: Tensor, after: Tensor) -> Ties:
    """Ties after a factor has changed the mean variance of positions from ``before`` to ``after``."""
    if ties.loadings is None:
        return ties
    return Ties(bounded(ties.loadings, factor * root(over(before, after))), ties.near)


def _fitted(factor: Tensor, x: MomentTensor, loadings: Tensor) -> Tensor:
    """A factor that broadcasts over ``x``, as its mean over the positions, if it is not that already."""
    own = [1] * (x.dim() - factor.dim()) + list(factor.shape)
    if all(m == 1 or m == n for m, n in zip(own, loadings.shape[1:], strict=True)):
        return factor
    return pooled(factor.expand(x.shape), loadings)


def after_activation(
    x: MomentTensor,
    covariance: Callable[[Callable[[Tensor], Tensor]], Tensor],
    mean: Tensor,
    variance: Tensor,
    averages: Averages | None = None,
) -> MomentTensor:
    """f(z) by its moments and Cov(z, f(z)) = Var z·E f'(z): what is common passes with the mean slope.

    ``covariance`` gets a function that picks some positions of a tensor, and gives Cov(z, f(z)) there.

    For jointly Gaussian numbers Cov(f(z₁), f(z₂)) = Σ_n ρⁿ a_n²/n! with a_n = σⁿ E f⁽ⁿ⁾; this is the first term.
    """
    known = x.shared if x.shared is not None or x.ties is None else x.ties.loadings
    made = x.like(mean, variance, x.shared)
    made.averages = averages
    if known is None or x.setting.rank == 0:
        return made
    before, after = level(x.variance, x.averages, known), level(variance, averages, known)
    slope = over(pooled(covariance(lambda value: some(value, positions(value, known))), known), before)
    kept = over(slope.square() * before, after).clamp_max(1)
    made.shared = None if x.shared is None else x.shared * kept
    return made if x.ties is None else made.tied(_passed(x.ties, slope, before, after))


def averaged(x: MomentTensor, variance: Tensor, factor: float = 1.0) -> Ties | None:
    """The ties of averages over all positions: of the noise that neighbours share, only what all share is left."""
    near = local(x)
    if x.ties is None or near is None or x.shared is None:
        return scaled(x, factor, variance) if variance.numel() == x.numel() else None  # of one position each
    ties = scaled(x, factor * root(over(x.shared, near)), variance)
    return None if ties is None else Ties(ties.loadings, None)


def summed(
    terms: Sequence[tuple[MomentTensor, float]], variance: Tensor, rank: int, averages: Averages | None = None
) -> Ties | None:
    """The ties of a sum of independent terms: the factors of all of them."""
    rows, near, weights = [], [], []
    for value, factor in terms:
        if value.shape != variance.shape:  # broadcast
            continue
        ties = scaled(value, factor, variance, averages)
        if ties is not None and ties.loadings is not None:
            rows.append(ties.loadings)
        if ties is not None and ties.near is not None:
            axes = tuple(a for a, n in enumerate(ties.near.shape) if n == 1 < variance.shape[a])
            own = value.variance.mean(axes, keepdim=True) if value.averages is None else value.averages.variance
            weights.append(factor**2 * own)
            near.append(weights[-1] * ties.near)
    whole = len(near) == len(terms)
    return _of_rows(rows, over(sum(near[1:], near[0]), sum(weights[1:], weights[0])) if whole else None, rank)


def joined(tensors: Sequence[Any], dim: int, rank: int) -> Ties | None:
    """The ties of tensors side by side along an axis that is none of positions: each has factors of its own."""
    known = [getattr(tensor, "ties", None) or Ties(None, None) for tensor in tensors]
    sizes = [tensor.shape[dim] for tensor in tensors]
    rows = []
    for place, ties in enumerate(known):
        if ties.loadings is None:
            continue
        if ties.loadings.shape[1 + dim] != sizes[place]:
            return None
        shape = list(ties.loadings.shape)
        pieces = [ties.loadings.new_zeros((*shape[: 1 + dim], size, *shape[2 + dim :])) for size in sizes]
        pieces[place] = ties.loadings
        rows.append(torch.cat(pieces, 1 + dim))
    near = [ties.near for ties in known if ties.near is not None]
    whole = len(near) == len(sizes) and all(each.shape[dim] == n for each, n in zip(near, sizes, strict=True))
    return _of_rows(rows, torch.cat(near, dim) if whole else None, rank)


def rearranged(x: MomentTensor, operation: Callable[[Tensor], Any]) -> Any:
    """The ties after an operation that moves, copies or chooses numbers; a list, where it returns several tensors."""
    if x.ties is None or x.ties.loadings is None:
        return None
    moved = [operation(each.contiguous().expand(x.shape)) for each in x.ties.loadings]
    if isinstance(moved[0], Tensor):
        return Ties(torch.stack(list(map(_shortened, moved))), None)
    return [Ties(torch.stack([_shortened(each[i]) for each in moved]), None) for i in range(len(moved[0]))]


def noise_of_deviations(x: MomentTensor, axes: tuple[int, ...]) -> Tensor:
    """What noise adds to the expected squared deviation from the mean over ``axes``: E σ² - Var of the mean."""
    spread = x.variance.mean(axes, keepdim=True)
    n = math.prod(x.shape[axis] for axis in axes)
    factors = _factors(x, axes)
    if factors is None:
        return spread * (1 - 1 / n)
    before = pooled(x.variance, factors)
    alone = (before - factors.square().sum(0)).clamp_min(0).mean(axes, keepdim=True)
    taken = alone / n + factors.mean(axes, keepdim=True).square().sum(0)
    return spread * (1 - over(taken, before.mean(axes, keepdim=True))).clamp(0, 1)


def after_norm(
    made: MomentTensor, x: MomentTensor, normed: Tensor, factor: Tensor, axes: tuple[int, ...]
) -> MomentTensor:
    """A norm over ``axes`` takes from each factor F its mean and its part along x̂: F - F̄ - x̂·mean(x̂F) is left.

    ``made`` has the moments without this, ``normed`` is x̂, and ``factor`` what the norm multiplies by.
    """
    factors = _factors(x, axes)
    if factors is None:
        return made
    before = pooled(x.variance, factors)
    along = pooled(normed, factors)
    left = factors - factors.mean(axes, keepdim=True) - along * (along * factors).mean(axes, keepdim=True)
    passed = pooled(factor.square() * x.variance, factors)
    lost = over((left.square() - factors.square()).sum(0), before).clamp(-1, 0) * passed
    total = pooled(made.variance, factors)
    corrected = total + lost
    shared = None if made.shared is None else over(made.shared * total + lost, corrected).clamp(0, 1)
    passing = _fitted(factor, x, factors) * root(over(torch.ones_like(corrected), corrected))
    loadings = bounded(left, passing)
    return made.like(made.expected, made.variance * over(corrected, total), shared).tied(Ties(loadings, None))


def _factors(x: MomentTensor, axes: tuple[int, ...]) -> Tensor | None:
    loadings = None if x.ties is None else x.ties.loadings
    if loadings is None or any(loadings.shape[axis] != x.shape[axis] for axis in axes):
        return None
    return loadings * root(pooled(x.variance, loadings))


def _of_rows(rows: list[Tensor], near: Tensor | None, rank: int) -> Ties | None:
    """Ties of factors that belong to different terms, at most twice as many as a layer makes."""
    if len({row.shape[1:] for row in rows}) > 1:
        rows = []
    if not rows:
        return None if near is None else Ties(None, near)
    loadings = torch.cat(rows)
    if len(loadings) > 2 * rank:
        with torch.no_grad():  # a choice of directions: those with the largest loadings
            flat = wide(loadings.movedim(0, 1).flatten(2))  # examples, factors, units
            turn = torch.linalg.eigh(flat @ flat.mT).eigenvectors[..., -2 * rank :].to(loadings.dtype)
        loadings = torch.einsum("bkm,kb...->mb...", turn, loadings)
    return Ties(loadings, near)


def wide(value: Tensor) -> Tensor:
    """In a type that torch has linear algebra for."""
    return value if value.dtype in (torch.float32, torch.float64) else value.float()


def bounded(loadings: Tensor, factor: Tensor) -> Tensor:
    """factor·φ, where Σ_k (factor·φ_k)² is at most 1."""
    whole = loadings.square().sum(0) * factor.square()
    return loadings * (factor * torch.where(whole > 1, whole, 1).rsqrt())


def pooled(value: Tensor, loadings: Tensor) -> Tensor:
    """The mean over the positions, along which loadings have length 1; over some rows of them, where there are many."""
    axes = positions(value, loadings)
    return some(value, axes).mean(axes, keepdim=True) if axes else value


def level(variance: Tensor, averages: Averages | None, loadings: Tensor) -> Tensor:
    """`pooled` of a variance; the mean over all positions where that is known."""
    if averages is not None and averages.variance.shape == loadings.shape[loadings.dim() - variance.dim() :]:
        return averages.variance
    return pooled(variance, loadings)


def some(value: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Evenly spaced rows of the positions, which are along ``axes``, where there are many: enough for their means."""
    if len(axes) < 2 or value.shape[axes[0]] < 2 * _ROWS:
        return value
    return value[(*[slice(None)] * axes[0], slice(None, None, value.shape[axes[0]] // _ROWS))]


def positions(value: Tensor, loadings: Tensor) -> tuple[int, ...]:
    """The axes along which loadings, or a shared fraction, are the same for all."""
    own = loadings.shape[loadings.dim() - value.dim() :]
    return tuple(axis for axis, (n, m) in enumerate(zip(value.shape, own, strict=True)) if m == 1 < n)


def root(value: Tensor) -> Tensor:
    """√v, with gradient 0 at 0."""
    if not torch.is_grad_enabled():
        return value.clamp_min(0).sqrt()
    found: Tensor = SafeSqrt.apply(value)
    return found


def over(part: Tensor, whole: Tensor) -> Tensor:
    """part / whole, and the part itself, which is then about 0, where the whole is."""
    return part / torch.where(whole > _NOTHING, whole, 1)


def _shortened(value: Tensor) -> Tensor:
    for axis, (n, step) in enumerate(zip(value.shape, value.stride(), strict=True)):
        if n > 1 and step == 0:
            value = value.narrow(axis, 0, 1)
    return value
