"""The lower storey of moments: what the noise of different entries of one tensor has in common.

Two numbers that depend on the same random weight are correlated. If that were forgotten, every sum over them would come
out too sure. `Correlations` follows three such relations, and has one method for each kind of operation. The rules,
which are the upper storey, know only means and variances.

**Positions.** The pixels of an image, or the tokens of a text, pass through the same random filter, so they share its
noise. Of each variance V the fraction ρ is common to all positions, and the fraction 1 − ρ is taken as independent. A
sum over n positions then has the variance (n²ρ + n(1 − ρ))V instead of nV. For a layer y_p = Σ w x_p, the mean
covariance of two positions p ≠ q is Σ σ_w² (mean x_p x_q + ρ_x σ_x²) + Σ w² ρ_x σ_x², the mean variance is
Σ σ_w² (mean x_p² + σ_x²) + Σ w² σ_x², and ρ is their ratio: the average over all positions has the right variance. This
is the setting ``positions="split"``. With "shared" all noise of a random filter counts as common, with "independent"
none. "split" is the default by measurement (`docs/results/moments_accuracy.json`): on trained networks "independent"
gives 0.6 to 0.8 of the true standard deviation; "shared" is nearer for a ResNet-18 and a vision transformer, where it
makes up for relations that are not followed, and up to 1.4 times too wide for a convolutional network with a global
average.

**Neighbours.** Windows of neighbouring positions overlap, so neighbours share more noise than distant positions do.

**Units.** All units of a layer read the same noisy input: Cov(Wx) = W Cov(x) Wᵀ is not diagonal, and in trained
networks its off-diagonal part adds up. Without it a trained perceptron has 0.73 of the true standard deviation, with 8
factors 0.98 (same file; a transformer is worst, with 0.74). So unit c is m_c + √V_c (Σ_k φ_kc ε_k + noise of its own),
where all units have a few standard normal numbers ε_k in common, and φ are their loadings. The factors describe the
noise that neighbouring positions share, and are the same at all positions: only sums over positions touch tensors of
full size.

The first axis holds the examples; nothing is averaged over it. The terms of a sum, and tensors that are concatenated,
count as independent of each other. What an operation cannot carry on stays in the variance, as independent noise.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from leanbayes._ops.low_rank import Runs, bounded, map_covariance, map_runs, quotient, root, rows_times
from leanbayes._ops.moments import resample
from leanbayes._ops.positions import (
    factors_together,
    folded,
    fraction_of,
    nearby_fraction,
    neighbour_products,
    pool_factor,
    pooled,
    position_axes,
    ratio_along,
    sampled_rows,
    without_copies,
)
from leanbayes._ops.safe_sqrt import SafeSqrt

if TYPE_CHECKING:
    from leanbayes.propagate.moments.tensor import Setting

__all__ = ["INDEPENDENT", "Averages", "Correlations", "LinearMap", "Noise", "Term"]

Covariance = Callable[[Callable[[Tensor], Tensor]], Tensor]
"""Gives Cov(z, f(z)) at the positions that its argument picks from a tensor."""
Part = tuple[Tensor, Tensor | None]
"""The variance of one term of a sum, and the fraction of it that all positions share."""


class Averages(NamedTuple):
    """Means over the positions of each example and channel, of shape (examples, channels, 1, …): of μ, μ² and σ²."""

    mean: Tensor | None
    square: Tensor | None
    variance: Tensor


class Noise(NamedTuple):
    """The variances of a tensor, and their averages over positions where a sweep over memory has left them."""

    variance: Tensor
    averages: Averages | None = None

    def level(self, like: Tensor) -> Tensor:
        """Return the mean variance over the positions, which are the axes where ``like`` has length 1."""
        if self.averages is not None and self.averages.variance.shape == like.shape[like.dim() - self.variance.dim() :]:
            return self.averages.variance
        return pooled(self.variance, like)


class LinearMap(NamedTuple):
    """What `Correlations.linear` must know of a layer y = op(x, w) + b, beside the moments of y.

    Attributes:
        input: The mean of x.
        noise: The noise of x; None if x is not random.
        correlations: The correlations of x.
        weight: The mean of w, of shape (out, in, …offsets).
        square: w², or w² summed over the offsets; None if x is not random.
        fold_variance: Returns Σ_k s_k σ²_oik, the variance of w summed over the offsets, which keep length 1. It takes
            the s_k as its argument, or None for ones. It is None if w is not random.
        bias_variance: The variance of b; None if b is not random.
        channel: The axis of x that holds its units.
        axes: The axes of x that hold its positions.
        at_one_position: ``op(value, kernel)`` for a value of one position and a kernel of one offset.
        shares: For each offset of a filter, the share of positions at which it falls on the image; None if it is not
            known. Correlations of units are then not followed.
        averages: The means of x, x² and σ_x² over the positions, where they are known.
    """

    input: Tensor
    noise: Noise | None
    correlations: "Correlations"
    weight: Tensor
    square: Tensor | None
    fold_variance: Callable[[Tensor | None], Tensor] | None
    bias_variance: Tensor | None
    channel: int
    axes: tuple[int, ...]
    at_one_position: Callable[[Tensor, Tensor], Tensor]
    shares: Tensor | None = None
    averages: tuple[Tensor, Tensor, Tensor] | None = None

    @property
    def several(self) -> bool:
        """Whether there is more than one position."""
        return any(self.input.shape[axis] > 1 for axis in self.axes)

    @property
    def images(self) -> bool:
        """Whether positions have neighbours: they follow the channels. Tokens, which precede the units, have none."""
        return self.several and self.channel != self.input.dim() - 1


class Term(NamedTuple):
    """A term of a sum: ``factor`` times a tensor with this noise and these correlations."""

    noise: Noise
    correlations: "Correlations"
    factor: float = 1.0


@dataclass(frozen=True)
class Correlations:
    """What the entries of a random tensor share, beside their variances. All None: the entries are independent.

    Attributes:
        positions: ρ, the fraction of the variance that all positions share. It has the tensor's number of axes, and
            length 1 along the positions.
        neighbours: Of the variance that not all positions share, the fraction that neighbouring positions share.
        units: φ, the loadings of the factors that units share, of shape (factors, …): the axes of the tensor follow,
            with length 1 along the positions.
        runs: The loadings, instead of ``units``, of images that have become rows (`flattened`).
    """

    positions: Tensor | None = None
    neighbours: Tensor | None = None
    units: Tensor | None = None
    runs: Runs | None = None

    def spelled_out(self) -> "Correlations":
        """Return the same with loadings for each entry instead of runs; all methods but `linear` need this."""
        return self if self.runs is None else Correlations(units=self.runs.spelled_out())

    @property
    def nearby(self) -> Tensor | None:
        """The fraction of the variance that neighbouring positions share: ρ + (1 − ρ)·neighbours."""
        if self.positions is None or self.neighbours is None:
            return self.positions
        return self.positions + (1 - self.positions) * self.neighbours

    def common_axes(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the axes along which a tensor of this shape has positions that share noise."""
        if self.positions is None:
            return ()
        sizes = zip(shape, self.positions.shape, strict=True)
        return tuple(axis for axis, (n, m) in enumerate(sizes) if m == 1 < n)

    # ---- elementwise operations

    def elementwise(self, before: Noise, after: Noise, covariance: Covariance, rank: int) -> "Correlations":
        """Return the correlations of f(z), given Cov(z, f(z)) = Var z · E f'(z): common noise passes by the mean slope.

        For jointly Gaussian numbers Cov(f(z₁), f(z₂)) = Σ_n ρⁿ a_n²/n! with a_n = σⁿ E f⁽ⁿ⁾. This is the first term.
        With ``rank`` 0, where no covariances are followed beyond sums of positions, ρ stays as it is.
        """
        like = self.units if self.positions is None else self.positions
        if like is None or rank == 0:
            return self.positions_alone()
        level, level_after = before.level(like), after.level(like)
        sampled = covariance(lambda value: sampled_rows(value, position_axes(value, like)))
        slope = quotient(pooled(sampled, like), level)
        positions = self.positions
        if positions is not None:
            positions = positions * quotient(slope.square() * level, level_after).clamp_max(1)
        return Correlations(positions, self.neighbours, self._scaled_units(slope, level, level_after))

    def scaled(self, factor: Any, before: Noise, after: Noise) -> "Correlations":
        """Return the correlations of about ``factor``·x, where the factor is a number or a tensor of numbers."""
        if self.units is None:
            return self
        if isinstance(factor, Tensor):
            factor = pool_factor(factor, before.variance, self.units)
        units = self._scaled_units(factor, before.level(self.units), after.level(self.units))
        return replace(self, units=units)

    def _scaled_units(self, factor: Any, before: Tensor, after: Tensor) -> Tensor | None:
        return None if self.units is None else bounded(self.units, factor * root(quotient(before, after)))

    def positions_alone(self) -> "Correlations":
        """Return what is left if neither the slope nor the factor of an operation is known: ρ, and no factors."""
        return self if self.neighbours is None and self.units is None else Correlations(self.positions)

    def with_positions(self, positions: Tensor | None) -> "Correlations":
        """Return the same neighbours and units, with another ρ."""
        return Correlations(positions, self.neighbours, self.units)

    # ---- rearranging operations

    def rearranged(self, shape: Sequence[int], operation: Callable[[Tensor], Any]) -> Any:
        """Return the correlations after an operation that moves, copies or chooses entries of a tensor of ``shape``.

        The operation is applied to views in which positions have stride 0, and axes that still have it are positions.
        If the operation returns several tensors, a list is returned.
        """

        def move(value: Tensor) -> Any:
            # from contiguous memory, so that axes which can be merged are, whatever was done before
            return operation(value.contiguous().expand(tuple(shape)))

        fraction = None if self.positions is None else move(self.positions)
        loadings = None if self.units is None else [move(factor) for factor in self.units]
        first = fraction if loadings is None else loadings[0]
        if first is None or isinstance(first, Tensor):
            return _from_views(fraction, loadings)
        return [
            _from_views(
                None if fraction is None else fraction[i],
                None if loadings is None else [factor[i] for factor in loadings],
            )
            for i in range(len(first))
        ]

    def flattened(self, shape: Sequence[int]) -> "Correlations | None":
        """Return the correlations after images of ``shape`` (examples, channels, …) become rows, by runs.

        A row has the positions of the first channel, then those of the second, and so on. All positions of a channel
        have one loading. None if this is not so, or if there are no factors.
        """
        if self.units is None or shape[1] == 1 or self.units.shape[1:] != (*shape[:2], *[1] * (len(shape) - 2)):
            return None
        return Correlations(runs=Runs(self.units.flatten(2), math.prod(shape[2:])))

    def converted(self, convert: Callable[[Tensor], Tensor]) -> "Correlations":
        """Return the correlations in another type, on another device, or detached."""
        parts = (self.positions, self.neighbours, self.units)
        positions, neighbours, units = (None if part is None else convert(part) for part in parts)
        return Correlations(positions, neighbours, units)

    def squeezed(self, axes: tuple[int, ...]) -> "Correlations":
        """Return the correlations without these axes, which have length 1 in the tensor."""
        positions = None if self.positions is None else self.positions.squeeze(axes)
        units = None if self.units is None else self.units.squeeze(tuple(1 + axis for axis in axes))
        return Correlations(positions, None, units)

    def broadcast(self, variance: Tensor, shape: Sequence[int], setting: "Setting") -> Tensor | None:
        """Return ρ after a tensor with this variance is broadcast to ``shape``: copies of a number share all its noise.

        Copies along the first axis, of the examples, do not count: no sum is taken over it.
        """
        if variance.shape == torch.Size(shape) or setting.positions == "independent":
            return self.positions
        own = [1] * (len(shape) - variance.dim()) + list(variance.shape)
        if any(n > m for n, m in list(zip(shape, own, strict=True))[1:]):
            return variance.new_ones(own)
        if self.positions is None:
            return None
        return self.positions.reshape([1] * (len(shape) - variance.dim()) + list(self.positions.shape))

    @staticmethod
    def joined(
        parts: Sequence[tuple[Tensor, "Correlations"]], shape: Sequence[int], dim: int, rank: int
    ) -> "Correlations":
        """Return the correlations of tensors side by side along ``dim``, given the variance and correlations of each.

        Each tensor has factors of its own.
        """
        sizes = [variance.shape[dim] for variance, _ in parts]
        rows: list[Tensor] | None = []
        for index, (_, correlations) in enumerate(parts):
            units = correlations.units
            if units is None or rows is None:
                continue
            if units.shape[1 + dim] != sizes[index]:  # positions are joined: their loadings need not agree
                rows = None
                continue
            before, after = units.shape[: 1 + dim], units.shape[2 + dim :]
            pieces = [units.new_zeros((*before, size, *after)) for size in sizes]
            pieces[index] = units
            rows.append(torch.cat(pieces, 1 + dim))
        fraction = _joined_fraction(parts, shape, dim)
        if rows is None:
            return Correlations(fraction)
        known = [correlations.neighbours for _, correlations in parts if correlations.neighbours is not None]
        whole = len(known) == len(sizes) and all(near.shape[dim] == n for near, n in zip(known, sizes, strict=True))
        return Correlations(fraction, torch.cat(known, dim) if whole else None, factors_together(rows, rank))

    # ---- sums

    @staticmethod
    def mixed(parts: Sequence[Part], shape: Sequence[int]) -> "Correlations":
        """Return the correlations of a sum of independent parts, if no factors are followed: the mean ρ by variance."""
        if len(parts) == 1 and parts[0][1] is not None:
            alone = Correlations(parts[0][1])
            return alone if alone.common_axes(shape) else INDEPENDENT
        known = [fraction for _, fraction in parts if fraction is not None]
        # not over the first axis: what one example gives must not depend on the others
        axes = tuple(a for a in range(1, len(shape)) if shape[a] > 1 and all(rho.shape[a] == 1 for rho in known))
        if not known or not axes:
            return INDEPENDENT
        total, common = None, None
        for variance, fraction in parts:
            own = [a - len(shape) for a in axes]
            own = [a for a in own if a >= -variance.dim() and variance.shape[a] > 1]
            weight = variance.mean(own, keepdim=True) if own else variance
            total = weight if total is None else total + weight
            if fraction is not None:
                common = weight * fraction if common is None else common + weight * fraction
        assert total is not None
        assert common is not None
        return Correlations(fraction_of(common, total))

    @staticmethod
    def summed(fraction: Tensor | None, terms: Sequence[Term], after: Noise, rank: int) -> "Correlations":
        """Return the correlations of a sum of independent terms, whose ρ is ``fraction``: it has the factors of all."""
        rows, near, weights = [], [], []
        for noise, correlations, factor in terms:
            if noise.variance.shape != after.variance.shape:  # a term that is broadcast
                continue
            scaled = correlations.scaled(factor, noise, after)
            if scaled.units is not None:
                rows.append(scaled.units)
            if scaled.neighbours is not None:
                axes = tuple(a for a, n in enumerate(scaled.neighbours.shape) if n == 1 < after.variance.shape[a])
                known = noise.averages
                level = noise.variance.mean(axes, keepdim=True) if known is None else known.variance
                weights.append(factor**2 * level)
                near.append(weights[-1] * scaled.neighbours)
        neighbours = None
        if near and len(near) == len(terms):
            neighbours = quotient(sum(near[1:], near[0]), sum(weights[1:], weights[0]))
        return Correlations(fraction, neighbours, factors_together(rows, rank))

    # ---- reducing operations

    def reduced(self, before: Noise, axes: tuple[int, ...], divisor: int) -> tuple[Tensor, "Correlations"]:
        """Return the variance and the correlations of Σ z / divisor over ``axes``, which are kept with length 1."""
        variance, fraction = self._of_sum(before.variance, axes)
        if divisor != 1:
            variance = variance / divisor**2
        if self.units is None or any(self.units.shape[1 + axis] != 1 for axis in axes):
            return variance, Correlations(fraction)
        factor = before.variance.numel() // max(variance.numel(), 1) / divisor
        return variance, self.averaged(before, Noise(variance), factor).with_positions(fraction)

    def _of_sum(self, variance: Tensor, axes: tuple[int, ...]) -> Part:
        common = self.common_axes(variance.shape)
        together = tuple(axis for axis in axes if axis in common)
        others = tuple(axis for axis in common if axis not in axes)
        rho = self.positions
        if rho is None or not together:
            total = variance.sum(axes, keepdim=True)
            return total, None if rho is None else ratio_along((rho * variance).sum(axes, keepdim=True), total, others)
        added = variance.sum(together, keepdim=True)
        correlated = rho * added * math.prod(variance.shape[axis] for axis in together)  # ρ is of the mean pair
        alone = (1 - rho) * added
        left = tuple(axis for axis in axes if axis not in together)
        if left:
            correlated, alone = correlated.sum(left, keepdim=True), alone.sum(left, keepdim=True)
        total = correlated + alone
        return total, ratio_along(correlated, total, others)

    def averaged(self, before: Noise, after: Noise, factor: float = 1.0) -> "Correlations":
        """Return the correlations of averages over all positions: only noise that all positions share is left."""
        nearby = self.nearby
        if nearby is None or self.positions is None:
            of_one_position = after.variance.numel() == before.variance.numel()
            return self.scaled(factor, before, after) if of_one_position else INDEPENDENT
        left = self.scaled(factor * root(quotient(self.positions, nearby)), before, after)
        return Correlations(units=left.units)

    def resampled(
        self, before: Noise, maps: Sequence[Tensor], apply: Callable[[Tensor], Tensor], axes: tuple[int, ...]
    ) -> tuple[Tensor, "Correlations"]:
        """Return variance and correlations of y = Σ a x over positions: Σ a²σ² of own noise, (Σ aσ)² of common noise.

        Args:
            before: The noise of x.
            maps: For each axis, its weights as a matrix (before, after); a is their product.
            apply: The map x → y.
            axes: The axes of the positions.
        """
        if self.positions is None or not set(axes) & set(self.common_axes(before.variance.shape)):
            alone = _squares_resampled(before.variance, maps, axes)
            return alone, self.averaged(before, Noise(alone)).with_positions(None)
        rho = self.positions.mean(axes, keepdim=True)
        swept = resample(before.variance, rho.flatten(1), maps) if len(axes) == 2 and rho.dim() == 4 else None
        if swept is None:
            together = rho * apply(SafeSqrt.apply(before.variance)).square()
            total = together + (1 - rho) * _squares_resampled(before.variance, maps, axes)
            fraction = ratio_along(together, total, axes)
        else:
            total, sums = swept
            several = any(total.shape[axis] > 1 for axis in axes)
            fraction = fraction_of(*sums.unbind(1))[..., None, None] if several else None
        one_position = all(total.shape[axis] == 1 for axis in axes)
        carried = (self.averaged if one_position else self._unscaled)(before, Noise(total))
        return total, carried.with_positions(fraction)

    def _unscaled(self, before: Noise, after: Noise) -> "Correlations":
        return self.scaled(1.0, before, after)

    @staticmethod
    def contracted(common: Tensor | None, total: Tensor, axes: tuple[int, ...]) -> "Correlations":
        """Return the correlations of a product of two random tensors, ``common`` of whose variance ``axes`` share."""
        return INDEPENDENT if common is None else Correlations(ratio_along(common, total, axes))

    # ---- norms

    def noise_of_deviations(self, variance: Tensor, axes: tuple[int, ...]) -> Tensor:
        """Return what noise adds to the expected squared deviation from the mean over ``axes``: E σ² − Var(mean)."""
        level = variance.mean(axes, keepdim=True)
        n = math.prod(variance.shape[axis] for axis in axes)
        factors = self._factors(variance, axes)
        if factors is None:
            return level * (1 - 1 / n)
        before = pooled(variance, factors)
        alone = (before - factors.square().sum(0)).clamp_min(0).mean(axes, keepdim=True)
        taken = alone / n + factors.mean(axes, keepdim=True).square().sum(0)
        return level * (1 - quotient(taken, before.mean(axes, keepdim=True))).clamp(0, 1)

    def normed(
        self,
        fraction: Tensor | None,
        factor: Tensor,
        before: Noise,
        after: Noise,
        normed: Tensor | None = None,
        axes: tuple[int, ...] = (),
    ) -> tuple[Tensor, "Correlations"]:
        """Return variance and correlations after a norm, which takes from each factor what all units have in common.

        Of a factor F the norm leaves F − F̄ − x̂·mean(x̂F): neither its mean nor its part along x̂ passes.

        Args:
            fraction: ρ after the norm, if no factor lost anything.
            factor: What the norm multiplies by.
            before: The noise of the input.
            after: The noise of the output, if no factor lost anything.
            normed: x̂, the normed means; None if no loss is followed.
            axes: The axes over which the norm takes its statistics.
        """
        factors = None if normed is None else self._factors(before.variance, axes)
        if factors is None or normed is None:
            return after.variance, self.scaled(factor, before, after).with_positions(fraction)
        level = pooled(before.variance, factors)
        along = pooled(normed, factors)
        left = factors - factors.mean(axes, keepdim=True) - along * (along * factors).mean(axes, keepdim=True)
        passed = pooled(factor.square() * before.variance, factors)
        lost = quotient((left.square() - factors.square()).sum(0), level).clamp(-1, 0) * passed
        total = pooled(after.variance, factors)
        corrected = total + lost
        if fraction is not None:
            fraction = quotient(fraction * total + lost, corrected).clamp(0, 1)
        passing = pool_factor(factor, before.variance, factors) * root(quotient(torch.ones_like(corrected), corrected))
        return after.variance * quotient(corrected, total), Correlations(fraction, None, bounded(left, passing))

    def _factors(self, variance: Tensor, axes: tuple[int, ...]) -> Tensor | None:
        """Return φ√V, if the loadings are known for each entry along ``axes``."""
        if self.units is None or any(self.units.shape[axis] != variance.shape[axis] for axis in axes):
            return None
        return self.units * root(pooled(variance, self.units))

    # ---- linear layers

    @staticmethod
    def linear(
        variance: Tensor, layer: LinearMap, setting: "Setting"
    ) -> tuple[Tensor, "Correlations", Averages | None]:
        """Return the variance, the correlations and the averages, if known, after a linear layer or a convolution.

        With C the covariance of what neighbours share in the input, the output has W̄ C W̄ᵀ, where W̄ is the matrix of
        the layer, or the sum of a filter over its offsets. A few factors of it are kept, and its diagonal corrects the
        variance. The noise of the layer's own weight is common to positions, not to units.

        Args:
            variance: The variance if units were independent. Without gradients it is corrected in place.
            layer: The layer that has been applied.
            setting: The setting of the call.
        """
        fraction, level = _fraction_after_layer(layer, setting)
        if setting.rank == 0 or layer.shares is None or (layer.several and setting.positions == "independent"):
            exact = level is not None and not layer.images and setting.examples == 0  # no window meets a border
            return (
                variance,
                Correlations(fraction),
                Averages(None, None, level) if exact and level is not None else None,
            )
        return *_units_after_layer(variance, fraction, layer, layer.shares, setting.rank), None


INDEPENDENT = Correlations()


def _fraction_after_layer(layer: LinearMap, setting: "Setting") -> tuple[Tensor | None, Tensor | None]:
    """Return ρ after a layer, and the mean variance over the positions but for what their border changes.

    Both come from means over the positions alone: no operation here has the layer's full size.
    """
    if setting.positions == "independent" or not layer.several:
        return None, None
    mean, noise, axes, through = layer.input, layer.noise, layer.axes, layer.at_one_position
    w_square = None if layer.square is None else folded(layer.square)
    w_variance = None if layer.fold_variance is None else layer.fold_variance(None)
    variance: Tensor | None
    if layer.averages is not None:
        centre, square, variance = layer.averages
    else:
        centre, square = mean.mean(axes, keepdim=True), mean.square().mean(axes, keepdim=True)
        variance = None if noise is None else noise.variance.mean(axes, keepdim=True)
    rho = layer.correlations.positions
    same = None if variance is None or rho is None else rho.mean(axes, keepdim=True) * variance
    common, total = [], []
    if w_variance is not None:
        total.append(through(square if variance is None else square + variance, w_variance))
        if setting.positions == "shared":
            common.append(total[0])
        else:
            n = math.prod(mean.shape[axis] for axis in axes)
            pairs = (centre.square() * n - square) / (n - 1)  # the mean of x_p x_q over p ≠ q
            common.append(through(pairs if same is None else pairs + same, w_variance))
    if variance is not None:
        assert w_square is not None
        total.append(through(variance, w_square))
        if same is not None:
            common.append(through(same, w_square))
    if layer.bias_variance is not None:
        after_channel = mean.dim() - 1 - layer.channel
        column = layer.bias_variance.view(-1, *[1] * after_channel)
        total.append(column)
        common.append(column)
    if not common:
        return None, None
    level = sum(total[1:], total[0])
    rho = fraction_of(sum(common[1:], common[0]), level).clamp_min(0)
    rho, level = (value.view([1] * (mean.dim() - value.dim()) + list(value.shape)) for value in (rho, level))
    return rho, level


def _units_after_layer(
    variance: Tensor, rho: Tensor | None, layer: LinearMap, shares: Tensor, rank: int
) -> tuple[Tensor, Correlations]:
    """Return the variance, corrected for what units share, and the correlations; ``rho`` is ρ without this."""
    mean, channel, axes = layer.input, layer.channel, layer.axes

    def pool(value: Tensor) -> Tensor:
        """Return means over the positions, with the units on the last axis."""
        return (value.mean(axes, keepdim=True) if layer.several else value).movedim(channel, -1)

    def back(value: Tensor) -> Tensor:
        return value.movedim(-1, channel)

    def matrix(weight: Tensor) -> Tensor:
        return folded(weight, shares).flatten(1)

    # the variance of the input, and what neighbours, and all positions, share of it
    spread = nearby = everywhere = None
    if layer.noise is not None:
        spread = pool(layer.noise.variance) if layer.averages is None else layer.averages[2].movedim(channel, -1)
        nearby = everywhere = spread
        if layer.several:
            near, far = layer.correlations.nearby, layer.correlations.positions
            nearby = None if near is None else pool(near) * spread
            everywhere = None if far is None else pool(far) * spread
    if nearby is None and not layer.images:
        return variance, Correlations(rho)
    if mean.dim() == 2 and spread is not None:
        return _units_of_rows(variance, spread, layer, rank)
    fresh = fresh_nearby = mean.new_zeros([1] * mean.dim())  # what the layer's own noise adds, alone and to pairs
    if layer.fold_variance is not None:
        w_variance = layer.fold_variance(shares).flatten(1)
        square = pool(mean.square()) if layer.averages is None else layer.averages[1].movedim(channel, -1)
        fresh = rows_times(square if spread is None else square + spread, w_variance)
        if layer.images:
            pairs = neighbour_products(mean, axes).movedim(channel, -1)
            fresh_nearby = rows_times(pairs if nearby is None else pairs + nearby, w_variance)
    if layer.bias_variance is not None:
        fresh, fresh_nearby = fresh + layer.bias_variance, fresh_nearby + layer.bias_variance
    total = fresh
    if spread is not None and layer.square is not None:
        squares = matrix(layer.square)
        total = fresh + rows_times(spread, squares)
    if spread is None or nearby is None or everywhere is None:
        return variance, Correlations(
            rho, None if rho is None else nearby_fraction(back(fresh_nearby), back(total), rho)
        )

    within = rows_times(nearby, squares)
    units = layer.correlations.units
    loadings = None if units is None else units.movedim(1 + channel, -1)
    passed, factors = map_covariance(matrix(layer.weight), spread, nearby, loadings, rank)
    corrected = (total - within + passed).clamp_min(0)
    correction = back(quotient(corrected, total))
    neighbours = None
    if rho is not None:
        added = quotient(passed - within, corrected) * quotient(rows_times(everywhere, squares), within)
        rho = (quotient(rho, correction) + back(added)).clamp(0, 1)
        if layer.images:
            neighbours = nearby_fraction(back(fresh_nearby + passed), back(corrected), rho)
    loadings = bounded(factors, root(quotient(torch.ones_like(corrected), corrected))).movedim(-1, 1 + channel)
    # without gradients the variance is the layer's own, and nobody else has seen it yet; a graph has no such writes
    anew = torch.is_grad_enabled() or torch.compiler.is_compiling()
    variance = variance * correction if anew else variance.mul_(correction)
    return variance, Correlations(rho, neighbours, loadings)


def _units_of_rows(variance: Tensor, spread: Tensor, layer: LinearMap, rank: int) -> tuple[Tensor, Correlations]:
    """Do as `_units_after_layer` for rows without positions, where ``variance`` is what it would compute again."""
    assert layer.square is not None
    units, runs = layer.correlations.units, layer.correlations.runs
    if runs is not None:
        passed, factors = map_runs(layer.weight, spread, runs, rank)
    else:
        passed, factors = map_covariance(layer.weight, spread, spread, units, rank)
    if units is not None or runs is not None:  # otherwise the inputs are independent, as the variance takes them
        corrected = (variance - rows_times(spread, layer.square) + passed).clamp_min(0)
        correction = quotient(corrected, variance)
        anew = torch.is_grad_enabled() or torch.compiler.is_compiling()
        variance = variance * correction if anew else variance.mul_(correction)
    else:
        corrected = variance
    return variance, Correlations(units=bounded(factors, root(quotient(torch.ones_like(corrected), corrected))))


def _squares_resampled(variance: Tensor, maps: Sequence[Tensor], axes: tuple[int, ...]) -> Tensor:
    """Return Σ a²σ², one axis after the other. Images in channels_last keep their layout."""
    images = variance.dim() == 4 and len(axes) == 2 and not variance.is_contiguous()
    if images and variance.is_contiguous(memory_format=torch.channels_last):
        rows, columns = (weights.square().mT for weights in maps)
        count, channels, height, _ = variance.shape
        inner = columns @ variance.permute(0, 2, 3, 1)  # examples, rows, new columns, channels
        inner = rows @ inner.reshape(count, height, -1)
        return inner.view(count, len(rows), len(columns), channels).permute(0, 3, 1, 2)
    for axis, weights in zip(axes, maps, strict=True):
        variance = torch.tensordot(variance, weights.square(), dims=([axis], [0])).movedim(-1, axis)
    return variance


def _joined_fraction(parts: Sequence[tuple[Tensor, Correlations]], shape: Sequence[int], dim: int) -> Tensor | None:
    fractions = [correlations.positions for _, correlations in parts]
    known = [fraction for fraction in fractions if fraction is not None]
    axes = tuple(a for a in range(len(shape)) if shape[a] > 1 and all(fraction.shape[a] == 1 for fraction in known))
    if not known or not axes:
        return None
    if dim in axes:  # more positions: the mean of the fractions, weighted by variance
        totals = [variance.sum(axes, keepdim=True) for variance, _ in parts]
        common = [f * total for f, total in zip(fractions, totals, strict=True) if f is not None]
        return fraction_of(torch.stack(common).sum(0), torch.stack(totals).sum(0))
    pieces = []
    for (variance, _), fraction in zip(parts, fractions, strict=True):
        size = [1 if a in axes else n for a, n in enumerate(variance.shape)]
        pieces.append(known[0].new_zeros(size) if fraction is None else fraction.expand(size))
    return torch.cat(pieces, dim)


def _from_views(fraction: Tensor | None, loadings: list[Tensor] | None) -> Correlations:
    """Return correlations from views in which positions have stride 0; these axes get length 1."""
    if fraction is not None:
        short = without_copies(fraction)
        fraction = None if short is fraction else short
    units = None if loadings is None else torch.stack(list(map(without_copies, loadings)))
    return INDEPENDENT if fraction is None and units is None else Correlations(fraction, None, units)
