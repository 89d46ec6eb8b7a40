"""One random tensor at one moment: its mean, which coordinates are random, and how far they spread."""

from functools import cached_property

import torch
from torch import Tensor
from torch.distributions import Distribution

from leanbayes._ops.sparse_tensor import SparseTensor
from leanbayes.posteriors.family import Family

__all__ = ["RandomWeight"]


class RandomWeight:
    """A weight tensor of which some coordinates, or all, are random.

    ``index`` holds the flat positions of the k random coordinates and ``spread`` their k scales;
    where ``index`` is None every coordinate is random and ``spread`` has the tensor's own shape, or length 1 along axes
    whose coordinates share one scale.
    In place of ``spread`` the raw parameter ``rho`` may be given: then scales are computed when they are asked for.
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
        self.sums: Tensor | None = None  # (Σμ, Σμ², Σσ², Σ log σ), once a draw has brought them
        self._spread = spread

    @property
    def spread(self) -> Tensor:
        """The scales, computed once."""
        if self._spread is None:
            assert self.rho is not None
            self._spread = self.family.spread(self.rho)
        return self._spread

    @cached_property
    def positions(self) -> Tensor:
        """The random coordinates as int64, for the operations of torch that want that."""
        assert self.index is not None
        return self.index.long()

    @property
    def count(self) -> int:
        """How many coordinates are random."""
        return self.mean.numel() if self.index is None else self.index.numel()

    @cached_property
    def random_mean(self) -> Tensor:
        """μ of the random coordinates alone, shaped as ``spread``."""
        if isinstance(self.mean, SparseTensor) and self.index is self.mean.places:
            return self.mean.stored
        return self.mean if self.index is None else self.mean.flatten().index_select(0, self.index)

    def scattered(self, index: Tensor, shape: tuple[int, ...], *, dense: bool = False) -> "RandomWeight":
        """The weight of this shape of which this one is what is stored, at the flat positions ``index``.

        Its mean is a `SparseTensor`, or a dense one for operations that must have that.
        """
        made = SparseTensor.of(self.mean, index, shape)
        places = index if self.index is None else index.index_select(0, self.index)
        return RandomWeight(self.name, made.dense() if dense else made, places, self.spread, self.family)

    def noise(self, generator: torch.Generator | None = None, samples: int | None = None) -> Tensor:
        """Fresh ξ for the random coordinates."""
        return self.family.noise(self.mean if self.index is None else self.spread, samples, generator)

    def draw(self, generator: torch.Generator | None = None) -> Tensor:
        """The weight for fresh noise: the same that ``sample`` gives for ``noise`` of that generator."""
        if self.index is not None:
            return self.sample(self.noise(generator))
        if self.rho is not None and self.sums is None and torch.is_grad_enabled():
            found = self.family.draw_and_sums(self.mean, self.rho, generator)
            if found is not None:  # a KL will be asked for: its sums have come with the draw
                self.sums = found[1]
                return found[0]
        return self.family.draw(self.mean, self.spread, generator)

    def draw_into(self, buffer: Tensor, generator: torch.Generator | None = None) -> None:
        """The same, written into a copy of the mean."""
        if self.index is None:
            self.family.draw(self.mean, self.spread, generator, buffer)
        else:
            self.sample_into(buffer, self.noise(generator))

    def sample(self, noise: Tensor) -> Tensor:
        """The weight that ``noise`` stands for; a leading axis of draws is kept."""
        if self.index is None:
            return self.family.sample(self.mean, self.spread, noise)
        offset = self.random_offset(noise)
        if noise.dim() == 1:
            return self.mean.flatten().index_add(0, self.index, offset).view(self.mean.shape)
        draws = self.mean.flatten().expand(len(noise), -1)
        return draws.index_add(1, self.index, offset).view(len(noise), *self.mean.shape)

    def sample_into(self, buffer: Tensor, noise: Tensor) -> None:
        """Write the weight that ``noise`` stands for into a copy of the mean: only random coordinates are touched."""
        if self.index is None:
            self.family.sample(self.mean, self.spread, noise, out=buffer)
        else:
            draw = self.family.sample(self.random_mean, self.spread, noise)
            buffer.view(-1).index_copy_(0, self.positions, draw)

    def offset(self, noise: Tensor) -> Tensor:
        """W − μ as a dense tensor, zero where nothing is random."""
        return self._dense(self.random_offset(noise))

    def random_offset(self, noise: Tensor) -> Tensor:
        """W − μ of the random coordinates alone."""
        return self.family.perturbation(self.spread, noise, self._needed_mean())

    def variance(self) -> Tensor:
        """Var(W) as a dense tensor, zero where nothing is random."""
        return self._dense(self.random_variance())

    def random_variance(self) -> Tensor:
        """Var(W) of the random coordinates alone, shaped as ``spread``."""
        return self.family.variance(self.spread, self._needed_mean())

    def shared_variance(self) -> Tensor | None:
        """Var(W) with length 1 along the axes whose coordinates share one; None where each has its own."""
        return self.random_variance() if self._shares() and not self.family.relative else None

    def distribution(self) -> Distribution:
        """The law of the random coordinates."""
        return self.family.distribution(self.random_mean, self.spread)

    def widened(self) -> "RandomWeight":
        """Itself with a scale for each coordinate, in float32 if half precision: sums over weights need the digits."""
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
        """The means of the random coordinates, which only some families ask for."""
        return self.random_mean if self.family.relative or self.family.joint else None

    def _dense(self, values: Tensor) -> Tensor:
        if self.index is None:
            return values.expand(self.mean.shape)
        flat = values.new_zeros(self.mean.numel())
        return flat.index_add(0, self.index, values).view(self.mean.shape)
