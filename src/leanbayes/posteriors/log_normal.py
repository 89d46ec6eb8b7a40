"""The Log-Normal posterior: w = μ·e^{σξ − σ²/2}, ξ ~ N(0, 1)."""

import math
from collections.abc import Set
from dataclasses import dataclass

import torch
from torch import Tensor

from leanbayes.errors import InputError
from leanbayes.posteriors.location_scale import LocationScale
from leanbayes.posteriors.noise import standard_normal
from leanbayes.posteriors.normal import log_standard_normal, normal_moment, normal_statistics
from leanbayes.posteriors.terms import Form, Statistics, Term

__all__ = ["LogNormal"]


@dataclass(frozen=True)
class LogNormal(LocationScale):
    """|w| ~ Log-Normal(log|μ| − σ²/2, σ²) with the sign of μ, so that E[w] = μ (003, Table 1, Corollary 2).

    Noise is a share of the weight, and no weight changes its sign: a prior on the positive numbers is one of |w|.
    A weight of exactly 0 stays 0 for ever and has no density, so none may be random: choose the subspace accordingly.

    >>> LogNormal().variance(torch.tensor(0.1), torch.tensor(-2.0))
    tensor(0.0402)
    """

    symmetric = False
    positive = True
    relative = True

    def initial(self, weights: Tensor, generator: torch.Generator | None) -> Tensor:
        """ρ as ``init_scale`` says, which here is the scale of log|w|."""
        if weights.device.type != "meta" and not bool((weights != 0).all()):
            raise InputError(
                "a Log-Normal weight keeps its sign and can neither be nor become 0, and some of the weights are 0; "
                "leave them out: subspace=layers(...) or top_k(...)"
            )
        return super().initial(weights, generator)

    def noise(self, like: Tensor, samples: int | None, generator: torch.Generator | None) -> Tensor:
        """ξ ~ N(0, 1)."""
        return standard_normal(like.shape if samples is None else (samples, *like.shape), like, generator)

    def perturbation(self, spread: Tensor, noise: Tensor, mean: Tensor | None = None) -> Tensor:
        """μ(e^{σξ − σ²/2} − 1)."""
        assert mean is not None
        return mean * torch.expm1(spread * noise - 0.5 * spread.square())

    def variance(self, spread: Tensor, mean: Tensor | None = None) -> Tensor:
        """μ²(e^{σ²} − 1)."""
        assert mean is not None
        return mean.square() * torch.expm1(spread.square())

    def form(self, mean: Tensor, spread: Tensor, part: bool) -> Form:
        """log|w| = (log|μ| − σ²/2) + σξ."""
        location = mean.abs().log() - 0.5 * spread.square()
        return Form(location, spread, exponential=True, sign=None if part else mean.detach().sign())

    def log_noise(self, noise: Tensor) -> Tensor:
        """log φ(ξ)."""
        return log_standard_normal(noise)

    def expected(self, term: Term, count: int) -> float:  # noqa: ARG002
        """E ξ^k of N(0, 1)."""
        return normal_moment(term)

    def noise_entropy(self, count: int) -> float:
        """½ log 2πe a coordinate."""
        return count * 0.5 * math.log(2 * math.pi * math.e)

    def sampled(
        self, wanted: Set[Term], samples: int, like: Tensor, generator: torch.Generator | None
    ) -> Statistics | None:
        """As for `Normal`: the logarithm of the weight is Normal."""
        return normal_statistics(wanted, samples, like, generator)
