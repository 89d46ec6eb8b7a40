"""The KL divergence by drawing weights, with a graph and memory that do not grow with the number of draws.

The method is the graph reparameterization of Nazarovs et al. 2021: where log p is made of powers and logarithms, the
mean over draws depends on the parameters only through a few statistics of the noise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributions import Distribution

from leanbayes.errors import InputError
from leanbayes.kl.pair import Pair, expectation, finite_priors, resolve
from leanbayes.kl.statistics import draws, gather, require_way, standard_error, way
from leanbayes.kl.taylor import taylor_mean, taylor_powers
from leanbayes.posteriors import Family, Form, RandomWeight, Statistics
from leanbayes.posteriors.terms import Number, log

__all__ = ["Estimate", "Method", "MonteCarlo", "from_statistics"]

Method = Literal["exact", "taylor", "streamed", "direct"]

_GROUPS = 32  # groups of draws; the spread of their means gives the standard error


@dataclass(frozen=True)
class Estimate:
    """A Monte Carlo estimate of a divergence in nats.

    Attributes:
        value: the estimate.
        standard_error: the standard error of the estimate.
        samples: the number of draws.
        method: how the estimate was computed; see `MonteCarlo`.
        statistics: "sampled" if the statistics came from their law, "integrated" if a part of the noise was integrated
            out, "accumulated" if they were summed over draws.

    >>> print(Estimate(12.5, 0.25, 100, "exact", "sampled"))
    12.5 ± 0.25 nats (100 draws, exact tuple, sampled statistics)
    """

    value: float
    standard_error: float
    samples: int
    method: Method
    statistics: str

    def __str__(self) -> str:
        how = {"exact": "exact tuple", "taylor": "Taylor"}.get(self.method, self.method)
        means = f", {self.statistics} statistics" if self.method in ("exact", "taylor") else ""
        return f"{self.value:.6g} ± {self.standard_error:.2g} nats ({self.samples} draws, {how}{means})"


@dataclass(frozen=True)
class MonteCarlo:
    """KL(q‖p) ≈ 1/M Σ log q(wᵢ) − log p(wᵢ) with wᵢ ~ q, reparameterised (Nazarovs et al. 2021, eq. 2, 3).

    The estimator picks one of these methods for each pair of posterior and prior:

    - "exact": log p is made of terms whose mean needs only statistics of the noise, so the estimate is made of these
      (Theorems 1 and 2). Where the law of the statistics is known, or where the directions of `Radial` are integrated
      out, not even the time depends on M.
    - "streamed": value and gradient are accumulated over the draws, which is right for any prior.
    - "taylor": a polynomial takes the place of log p, if you ask for one (Theorem 3).
    - "direct": the naive graph, which grows with M, if you ask for it or if the prior itself is learned.

    In all but the last, neither graph nor memory depends on M.

    Args:
        samples: the number M of draws.
        direct: whether to build the naive graph, for comparison.
        taylor: the degree of a polynomial for log p, used for pairs that are not "exact".
        around: the point at which the polynomial is taken; by default the mean of each weight.
        statistics: "sampled" from their law, "integrated" over a part of the noise, "accumulated" over the draws, or
            "auto" for the cheapest one that is exact.

    >>> MonteCarlo(100).samples
    100
    """

    samples: int = 100
    direct: bool = False
    taylor: int | None = None
    around: float | None = None
    statistics: str = "auto"

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise InputError(f"MonteCarlo needs at least one sample, got {self.samples}")
        if self.taylor is not None and (self.taylor < 1 or self.direct):
            raise InputError(f"taylor must be a degree of at least 1 and excludes direct=True, got {self}")
        if self.around is not None and (self.taylor is None or not math.isfinite(self.around)):
            raise InputError(f"around must be a finite number and needs taylor=..., got {self}")
        require_way(self.statistics)

    def __call__(self, weight: RandomWeight, prior: Distribution, generator: torch.Generator | None = None) -> Tensor:
        """Estimate the divergence of one tensor in nats; half precision is summed in float32.

        Args:
            weight: the random tensor.
            prior: the prior of its random coordinates.
            generator: the source of random numbers; None for the global one of torch.
        """
        weight = weight.widened()
        return self._value(weight, prior, self.samples, generator).to(weight.spread.dtype)

    def estimate(self, weight: RandomWeight, prior: Distribution, generator: torch.Generator | None = None) -> Estimate:
        """Estimate the divergence without a graph, and with its standard error."""
        weight, groups = weight.widened(), min(self.samples, _GROUPS)
        sizes = [self.samples // groups + (i < self.samples % groups) for i in range(groups)]
        with torch.no_grad():
            values = torch.stack([self._value(weight, prior, size, generator) for size in sizes]).double()
        value = (values * values.new_tensor(sizes)).sum().item() / self.samples
        method = self.method(weight.family, prior)
        how = self._how(resolve(weight.family, prior), method)
        return Estimate(value, standard_error(values, sizes), self.samples, method, how)

    def method(self, family: Family, prior: Distribution) -> Method:
        """Return how a pair is computed, or raise `InputError` where its divergence is infinite."""
        pair = resolve(family, prior)
        _refuse_infinite(pair, "weights")
        if self.direct:
            return "direct"
        if pair.terms is not None:
            return "exact"
        if self.taylor is not None:
            taylor_powers(pair, self.taylor, 2)
            return "taylor"
        return "direct" if _is_learned(prior) else "streamed"

    def _how(self, pair: Pair, method: Method) -> str:
        """Return where the statistics come from."""
        if method in ("streamed", "direct"):
            return "accumulated"
        wanted = pair.wanted if method == "exact" else taylor_powers(pair, self.taylor or 1, 2)
        return way(pair.family, wanted, self.statistics)

    def _value(
        self, weight: RandomWeight, prior: Distribution, samples: int, generator: torch.Generator | None
    ) -> Tensor:
        family, mean, spread = weight.family, weight.random_mean, weight.spread
        pair = resolve(family, prior, spread.numel())
        _refuse_infinite(pair, weight.name)
        if self.direct or (pair.terms is None and self.taylor is None):
            naive = self.direct or _is_learned(prior)
            total = _direct if naive else _streamed
            try:
                return total(pair, mean, spread, samples, generator)
            except ValueError as error:  # torch refuses values outside of the prior's support
                raise InputError(_infinite(pair, weight.name, str(error))) from error
        form = family.form(mean, spread, pair.part)
        if pair.terms is not None:
            return from_statistics(pair, form, gather(family, pair.wanted, samples, spread, generator, self.statistics))
        assert self.taylor is not None
        wanted = taylor_powers(pair, self.taylor, spread.numel())
        statistics = gather(family, wanted, samples, spread, generator, self.statistics)
        log_p = taylor_mean(prior, form, family.noise_mean(), self.taylor, self.around, statistics)
        return _log_posterior(form, statistics) - log_p


def from_statistics(pair: Pair, form: Form, statistics: Statistics) -> Tensor:
    """Return KL(q‖p) of a pair whose log p is made of terms.

    The result is a Monte Carlo estimate if the statistics are means over draws, and exact if they are expectations.
    """
    assert pair.terms is not None
    total = _log_posterior(form, statistics)
    for term, coefficient in pair.terms.items():
        total = total - _summed(coefficient, expectation(term, form, statistics), form.scale)
    return total


def _log_posterior(form: Form, statistics: Statistics) -> Tensor:
    """Return the mean of log q(x), summed over coordinates: log f(ξ) − log σ, and −log x where x = e^b."""
    total = statistics.log_density - form.scale.log().sum()
    if form.exponential:
        total = total - _summed(1.0, expectation(log(), form, statistics), form.scale)
    return total


def _summed(coefficient: Number, values: Number, like: Tensor) -> Number:
    """Return Σ coefficient·value over the coordinates."""
    if isinstance(coefficient, Tensor) and coefficient.dim():
        return (coefficient * values).expand_as(like).sum()
    return coefficient * (values.sum() if isinstance(values, Tensor) else values * like.numel())


def _one_chunk(pair: Pair, mean: Tensor, spread: Tensor, noise: Tensor, naive: bool) -> Tensor:
    """Return Σ log q(wᵢ) − log p(wᵢ) over a chunk of draws; a ``naive`` graph holds every step of log q."""
    family = pair.family
    form = family.form(mean, spread, pair.part)
    base = form.base(noise)
    if naive:
        noise = form.scale * noise / form.scale
    log_q = family.change(form, base, family.log_noise(noise))
    x = form.variable(base)
    joint = getattr(pair.prior, "joint", False)
    log_p = torch.stack([pair.prior.log_prob(row) for row in x]) if joint else pair.prior.log_prob(x)
    return log_q.sum() - log_p.sum()


def _direct(pair: Pair, mean: Tensor, spread: Tensor, samples: int, generator: torch.Generator | None) -> Tensor:
    """Return the estimate with one subgraph for each draw."""
    total = torch.zeros((), dtype=spread.dtype, device=spread.device)
    for chunk in draws(pair.family, samples, spread, generator):
        for noise in chunk:
            total = total + _one_chunk(pair, mean, spread, noise[None], naive=True)
    return total / samples


def _streamed(pair: Pair, mean: Tensor, spread: Tensor, samples: int, generator: torch.Generator | None) -> Tensor:
    """Accumulate the mean over draws and its gradient; the graph has one node, whatever M and the prior are.

    The mean of gradients is the gradient of the mean, so this is the direct estimate up to the last digits.
    """
    graph = torch.is_grad_enabled() and (mean.requires_grad or spread.requires_grad)
    inputs = [t.detach().requires_grad_(graph) for t in (mean, spread)]
    total = torch.zeros((), dtype=spread.dtype, device=spread.device)
    gradients = [torch.zeros_like(t) for t in inputs] if graph else []
    for noise in draws(pair.family, samples, spread, generator):
        value = _one_chunk(pair, inputs[0], inputs[1], noise, naive=False)
        total = total + value.detach()
        if graph:
            for sum_, part in zip(gradients, torch.autograd.grad(value, inputs, allow_unused=True), strict=True):
                if part is not None:
                    sum_ += part
    if not graph:
        return total / samples
    estimate: Tensor = _WithGradients.apply(mean, spread, total / samples, *(g / samples for g in gradients))
    return estimate


class _WithGradients(torch.autograd.Function):
    """A number whose gradients have been computed before."""

    @staticmethod
    def forward(mean: Tensor, spread: Tensor, value: Tensor, by_mean: Tensor, by_spread: Tensor) -> Tensor:  # noqa: ARG004
        """Return the number."""
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:  # noqa: ARG004
        """Save the gradients."""
        ctx.save_for_backward(*inputs[3:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Multiply the gradients by the gradient of the output."""
        by_mean, by_spread = ctx.saved_tensors
        return gradient * by_mean, gradient * by_spread, None, None, None


def _is_learned(prior: Distribution) -> bool:
    """Return whether the prior has parameters that require gradients."""
    parameters: Sequence[Any] = [getattr(prior, name, None) for name in prior.arg_constraints]
    return torch.is_grad_enabled() and any(isinstance(p, Tensor) and p.requires_grad for p in parameters)


def _refuse_infinite(pair: Pair, name: str) -> None:
    if pair.infinite is not None:
        raise InputError(_infinite(pair, name, pair.infinite))


def _infinite(pair: Pair, name: str, reason: str) -> str:
    return (
        f"KL(q‖p) of {name!r} is infinite: {reason}. The prior must give density to every value that the posterior can "
        f"take; a {type(pair.family).__name__} posterior can have the priors {finite_priors(pair.family)}"
    )
