"""The distribution of a network's outputs, as one pass gives it: what training and prediction make of it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

import torch
from torch import Tensor

from leanbayes._calls import map_pairs, map_tensors
from leanbayes._ops.safe_sqrt import draw_normal
from leanbayes.propagate.covariance.joint import correlated, root

__all__ = ["CorrelatedOutputs", "IndependentOutputs", "Outputs", "ScoresOutputs"]


class ScoresOutputs(Protocol):
    """What this module needs of a `leanbayes.Likelihood`, whose methods of the same names explain themselves."""

    closed_form: bool

    @property
    def draws_outputs(self) -> bool: ...  # noqa: D102

    def nll(self, output: Any, target: Tensor) -> Tensor: ...  # noqa: D102

    def expected_nll(  # noqa: D102
        self, mean: Any, variance: Any, target: Tensor, *, samples: int = 1, generator: torch.Generator | None = None
    ) -> Tensor: ...

    def spread_outputs(self, mean: Any, variance: Any, points: int) -> Iterator[Any]: ...  # noqa: D102

    def uncertainty_of_outputs(self, outputs: Iterator[Any], points: int) -> Any: ...  # noqa: D102

    def uncertainty_of_moments(self, mean: Any, variance: Any, points: int) -> Any: ...  # noqa: D102


class Outputs(ABC):
    """Gaussian outputs of a batch: a tensor or a tuple of tensors, by their ``mean`` and ``variance``."""

    mean: Any

    @property
    @abstractmethod
    def variance(self) -> Any:
        """The variance of each number, in the shape of the mean."""

    @abstractmethod
    def draw(self, generator: torch.Generator | None = None) -> Any:
        """Draw the outputs once; gradients reach the mean and the spread."""

    @abstractmethod
    def divided(self, by: Tensor) -> "Outputs":
        """Return the distribution of the outputs divided by a number, such as a temperature."""

    @abstractmethod
    def shifted(self, shift: Callable[[Any], Any]) -> "Outputs":
        """Return the distribution of ``shift(outputs)``, which adds constants to them."""

    @abstractmethod
    def spread(self, likelihood: ScoresOutputs, points: int) -> Iterator[Any]:
        """Yield ``points`` outputs that stand for the distribution: the likelihood's evenly spread points."""

    def expected_nll(
        self, likelihood: ScoresOutputs, y: Tensor, *, samples: int, generator: torch.Generator | None
    ) -> Tensor:
        """Compute E[−log p(y | outputs)], summed over the batch; ``samples`` draws where no closed form exists."""
        return likelihood.expected_nll(self.mean, self.variance, y, samples=samples, generator=generator)

    def uncertainty(self, likelihood: ScoresOutputs, points: int) -> Any:
        """Compute the prediction and its uncertainty; ``points`` outputs where no closed form exists."""
        return likelihood.uncertainty_of_moments(self.mean, self.variance, points)


@dataclass(frozen=True)
class IndependentOutputs(Outputs):
    """Outputs whose numbers are drawn independently of each other: the distribution that `Moments` gives."""

    mean: Any
    variances: Any

    @property
    def variance(self) -> Any:
        """The variance of each number."""
        return self.variances

    def draw(self, generator: torch.Generator | None = None) -> Any:
        """Draw every number by itself."""
        return map_pairs(partial(draw_normal, generator=generator), self.mean, self.variances)

    def divided(self, by: Tensor) -> "IndependentOutputs":
        """Return N(m/T, v/T²)."""
        mean = map_tensors(lambda m: m / by.to(m), self.mean)
        return IndependentOutputs(mean, map_tensors(lambda v: v / by.to(v).square(), self.variances))

    def shifted(self, shift: Callable[[Any], Any]) -> "IndependentOutputs":
        """Shift the means."""
        return IndependentOutputs(shift(self.mean), self.variances)

    def spread(self, likelihood: ScoresOutputs, points: int) -> Iterator[Any]:
        """Yield evenly spread outputs."""
        return likelihood.spread_outputs(self.mean, self.variances, points)


@dataclass(frozen=True)
class CorrelatedOutputs(Outputs):
    """Outputs with a covariance (N, D, D) of the D numbers of each example: what `Covariance` gives."""

    mean: Any
    covariance: Any

    @property
    def variance(self) -> Any:
        """The diagonals of the covariances."""
        return map_pairs(lambda m, c: c.diagonal(dim1=-2, dim2=-1).reshape(m.shape), self.mean, self.covariance)

    @cached_property
    def roots(self) -> Any:
        """The root of each covariance, from which any number of draws are made."""
        return map_tensors(root, self.covariance)

    def draw(self, generator: torch.Generator | None = None) -> Any:
        """Draw the numbers of each example together."""

        def draw(m: Tensor, factor: Tensor) -> Tensor:
            return m + correlated(factor, torch.randn(m.shape, dtype=m.dtype, device=m.device, generator=generator))

        return map_pairs(draw, self.mean, self.roots)

    def divided(self, by: Tensor) -> "CorrelatedOutputs":
        """Return N(m/T, C/T²)."""
        mean = map_tensors(lambda m: m / by.to(m), self.mean)
        return CorrelatedOutputs(mean, map_tensors(lambda c: c / by.to(c).square(), self.covariance))

    def shifted(self, shift: Callable[[Any], Any]) -> "CorrelatedOutputs":
        """Shift the means."""
        return CorrelatedOutputs(shift(self.mean), self.covariance)

    def spread(self, likelihood: ScoresOutputs, points: int) -> Iterator[Any]:
        """Yield evenly spread outputs whose noise is correlated as the covariance says."""
        flat = map_tensors(lambda m: m.reshape(len(m), -1), self.mean)
        zeros, ones = map_tensors(torch.zeros_like, flat), map_tensors(torch.ones_like, flat)
        for noise in likelihood.spread_outputs(zeros, ones, points):
            offsets = map_pairs(lambda factor, xi: correlated(factor, xi), self.roots, noise)
            yield map_pairs(lambda m, offset: m + offset.view(m.shape), self.mean, offsets)

    def expected_nll(
        self, likelihood: ScoresOutputs, y: Tensor, *, samples: int, generator: torch.Generator | None
    ) -> Tensor:
        """Compute E[−log p(y | outputs)]; the draws, where there are any, have the whole covariance."""
        if not likelihood.draws_outputs:
            return super().expected_nll(likelihood, y, samples=samples, generator=generator)
        return torch.stack([likelihood.nll(self.draw(generator), y) for _ in range(samples)]).mean()

    def uncertainty(self, likelihood: ScoresOutputs, points: int) -> Any:
        """Compute the prediction; a closed form needs the variances alone."""
        if likelihood.closed_form:
            return super().uncertainty(likelihood, points)
        return likelihood.uncertainty_of_outputs(self.spread(likelihood, points), points)
