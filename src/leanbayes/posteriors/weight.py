"""A random tensor at one moment: its mean, its random coordinates, and their scales."""

from functools import cached_property

import torch
from torch import Tensor
from torch.distributions import Distribution

from leanbayes._ops.sparse_tensor import SparseTensor
from leanbayes.posteriors.family import Family

__all__ = ["RandomWeight"]


class RandomWeight:
    """A weight tensor of which all coordinates or a part of them are random.

    Args:
        name: the name of the parameter, for messages.
        mean: the means of all coordinates.
        index: the flat positions of the k random coordinates, or None if every coordinate is random.
        spread: the scales, k numbers. Without an index they have the shape of ``mean``, or length 1 along axes whose
            coordinates share one scale. None if ``rho`` is given.
        family: the distribution of the random coordinates.
        rho: the raw parameter. If it is given in place of ``spread``, the scales are computed when they are needed.
    """

    def __init__(
        self,
        name: str,
        mean: Tensor,
        index: Tensor | None,
        spread: Tensor | None,
        family: Family,
        rho: Tensor | None = None,
    ) -> None:
        self.name, self.mean, self.index, self.family, self.rho = name, mean, index, family, rho
        self.sums: Tensor | None = None  # (Σμ, Σμ², Σσ², Σ log σ), after a draw that computed them
        self._spread = spread

    @property
    def spread(self) -> Tensor:
        """The scales, which are computed once."""
        if self._spread is None:
            assert self.rho is not None
            self._spread = self.family.spread(self.rho)
        return self._spread

    @cached_property
    def positions(self) -> Tensor:
        """The random coordinates as int64, which several operations of torch need."""
        assert self.index is not None
        return self.index.long()

    @property
    def count(self) -> int:
        """How many coordinates are random."""
        return self.mean.numel() if self.index is None else self.index.numel()

    @cached_property
    def random_mean(self) -> Tensor:
        """The means of the random coordinates alone, shaped as ``spread``."""
        if isinstance(self.mean, SparseTensor) and self.index is self.mean.positions:
            return self.mean.stored
        return self.mean if self.index is None else self.mean.flatten().index_select(0, self.index)

    def scattered(self, index: Tensor, shape: tuple[int, ...], *, dense: bool = False) -> "RandomWeight":
        """Return the sparse weight whose stored values are this weight.

        Args:
            index: the flat positions of the stored values.
            shape: the shape of the sparse weight.
            dense: whether its mean is a dense tensor, for operations that need one, and not a `SparseTensor`.
        """
        mean = SparseTensor.of(self.mean, index, shape)
        positions = index if self.index is None else index.index_select(0, self.index)
        return RandomWeight(self.name, mean.dense() if dense else mean, positions, self.spread, self.family)

    def noise(self, generator: torch.Generator | None = None, samples: int | None = None) -> Tensor:
        """Draw ξ for the random coordinates."""
        return self.family.noise(self.mean if self.index is None else self.spread, samples, generator)

    def draw(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw the weight: the one that `sample` returns for the `noise` of that generator."""
        if self.index is not None:
            if torch.is_grad_enabled() and not torch.compiler.is_compiling():
                # The KL needs these means later. The backward pass of this choice makes a gradient of the whole tensor,
                # and autograd goes backwards: chosen now, before the pass, it is made when the pass has freed its draw.
                _ = self.random_mean
            return self.sample(self.noise(generator))
        if self.rho is not None and self.sums is None and torch.is_grad_enabled():
            drawn_and_sums = self.family.draw_and_sums(self.mean, self.rho, generator)
            if drawn_and_sums is not None:  # a training step needs the KL as well, which is made of these sums
                drawn, self.sums = drawn_and_sums
                return drawn
        return self.family.draw(self.mean, self.spread, generator)

    def draw_into(self, buffer: Tensor, generator: torch.Generator | None = None) -> None:
        """Draw the weight and write it into a copy of the mean."""
        if self.index is None:
            self.family.draw(self.mean, self.spread, generator, buffer)
        else:
            self.sample_into(buffer, self.noise(generator))

    def sample(self, noise: Tensor) -> Tensor:
        """Return the weight that ``noise`` stands for, with a leading axis of draws if the noise has one."""
        if self.index is None:
            return self.family.sample(self.mean, self.spread, noise)
        offset = self.random_offset(noise)
        if isinstance(self.mean, SparseTensor) and noise.dim() == 1:
            return self.mean.plus(offset, self.index)
        if noise.dim() == 1:
            return self.mean.flatten().index_add(0, self.index, offset).view(self.mean.shape)
        draws = self.mean.flatten().expand(len(noise), -1)
        return draws.index_add(1, self.index, offset).view(len(noise), *self.mean.shape)

    def pair(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights that ``noise`` and −``noise`` stand for."""
        if self.index is None and self.rho is not None:
            both = self.family.pair(self.mean, self.rho, noise)
            if both is not None:
                return both
        return self.sample(noise), self.sample(-noise)

    def sample_into(self, buffer: Tensor, noise: Tensor) -> None:
        """Write the weight that ``noise`` stands for into a copy of the mean; only random coordinates change."""
        if self.index is None:
            self.family.sample(self.mean, self.spread, noise, out=buffer)
        else:
            draw = self.family.sample(self.random_mean, self.spread, noise)
            buffer.view(-1).index_copy_(0, self.positions, draw)

    def offset(self, noise: Tensor) -> Tensor:
        """Return W − μ as a dense tensor, which is zero where nothing is random."""
        return self._dense(self.random_offset(noise))

    def random_offset(self, noise: Tensor) -> Tensor:
        """Return W − μ of the random coordinates alone."""
        return self.family.perturbation(self.spread, noise, self._needed_mean())

    def variance(self) -> Tensor:
        """Return Var(W) as a dense tensor, which is zero where nothing is random."""
        return self._dense(self.random_variance())

    def random_variance(self) -> Tensor:
        """Return Var(W) of the random coordinates alone, shaped as ``spread``."""
        if self._spread is None and self.rho is not None:
            variance = self.family.raw_variance(self.rho)
            if variance is not None:
                return variance
        return self.family.variance(self.spread, self._needed_mean())

    def shared_variance(self) -> Tensor | None:
        """Return Var(W) with length 1 along axes whose coordinates share it, or None where each has its own."""
        return self.random_variance() if self._shares() and not self.family.relative else None

    def distribution(self) -> Distribution:
        """Return the law of the random coordinates."""
        return self.family.distribution(self.random_mean, self.spread)

    def widened(self) -> "RandomWeight":
        """Return this weight with a scale for each coordinate, and in float32 if it has half precision.

        Sums over many weights need the digits.
        """
        mean, half = self.mean, self.mean.dtype.itemsize < 4
        if not half and not self._shares():
            return self
        spread = self.spread.expand(mean.shape) if self._shares() else self.spread
        if half:
            mean, spread = mean.float(), spread.float()
        return RandomWeight(self.name, mean, self.index, spread, self.family)

    def _shares(self) -> bool:
        stored = self.rho if self._spread is None else self._spread
        return self.index is None and stored is not None and stored.shape != self.mean.shape

    def _needed_mean(self) -> Tensor | None:
        """Return the means of the random coordinates where the family needs them."""
        return self.random_mean if self.family.relative or self.family.joint else None

    def _dense(self, values: Tensor) -> Tensor:
        if self.index is None:
            return values.expand(self.mean.shape)
        flat = values.new_zeros(self.mean.numel())
        return flat.index_add(0, self.index, values).view(self.mean.shape)
