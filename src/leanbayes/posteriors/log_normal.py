"""The Log-Normal posterior, w = μ·e^{σξ − σ²/2} with ξ ~ N(0, 1)."""

import math
from collections.abc import Set
from dataclasses import dataclass

import torch
from torch import Tensor

from leanbayes.errors import InputError
from leanbayes.posteriors._noise import standard_normal
from leanbayes.posteriors.location_scale import LocationScale
from leanbayes.posteriors.normal import log_standard_normal, normal_moment, normal_statistics
from leanbayes.posteriors.terms import Form, Statistics, Term

__all__ = ["LogNormal"]


@dataclass(frozen=True)
class LogNormal(LocationScale):
    """The weight has the sign of μ, and |w| ~ Log-Normal(log|μ| − σ²/2, σ²), so that E[w] = μ.

    The noise is a share of the weight, and no weight changes its sign. A prior on the positive numbers therefore speaks
    of |w| (Nazarovs et al. 2021, Table 1, Corollary 2). A weight of exactly 0 would stay 0 for ever and has no density,
    so no such weight may be random: choose the subspace accordingly.

    Args:
        init_scale: where σ, the scale of log|w|, starts; see `Normal`.

    >>> LogNormal().variance(torch.tensor(0.1), torch.tensor(-2.0))
    tensor(0.0402)
    """

    symmetric = False
    positive = True
    relative = True

    def initial(self, weights: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the ρ that ``init_scale`` describes, which here is the scale of log|w|."""
        if weights.device.type != "meta" and not bool((weights != 0).all()):
            raise InputError(
                "a Log-Normal weight keeps its sign and can neither be nor become 0, and some of the weights are 0; "
                "leave them out: subspace=layers(...) or top_k(...)"
            )
        return super().initial(weights, generator)

    def noise(self, like: Tensor, samples: int | None, generator: torch.Generator | None) -> Tensor:
        """Draw ξ ~ N(0, 1)."""
        return standard_normal(like.shape if samples is None else (samples, *like.shape), like, generator)

    def perturbation(self, spread: Tensor, noise: Tensor, mean: Tensor | None = None) -> Tensor:
        """Return μ(e^{σξ − σ²/2} − 1)."""
        assert mean is not None
        return mean * torch.expm1(spread * noise - 0.5 * spread.square())

    def variance(self, spread: Tensor, mean: Tensor | None = None) -> Tensor:
        """Return μ²(e^{σ²} − 1)."""
        assert mean is not None
        return mean.square() * torch.expm1(spread.square())

    def form(self, mean: Tensor, spread: Tensor, part: bool) -> Form:
        """Return the form log|w| = (log|μ| − σ²/2) + σξ."""
        location = mean.abs().log() - 0.5 * spread.square()
        return Form(location, spread, exponential=True, sign=None if part else mean.detach().sign())

    def log_noise(self, noise: Tensor) -> Tensor:
        """Return log φ(ξ)."""
        return log_standard_normal(noise)

    def expected(self, term: Term, count: int) -> float:  # noqa: ARG002
        """Return E ξ^k of N(0, 1)."""
        return normal_moment(term)

    def noise_entropy(self, count: int) -> float:
        """Return ½ log 2πe for each coordinate."""
        return count * 0.5 * math.log(2 * math.pi * math.e)

    def sampled(
        self, wanted: Set[Term], samples: int, like: Tensor, generator: torch.Generator | None
    ) -> Statistics | None:
        """Return the statistics of `Normal`, because the logarithm of the weight is Normal."""
        return normal_statistics(wanted, samples, like, generator)
