"""KL by drawing weights, through statistics of their noise: neither graph nor memory grows with the draws (003)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributions import Distribution

from leanbayes.errors import InputError, UnknownName
from leanbayes.kl.pair import Pair, expectation, finite_priors, resolve
from leanbayes.kl.statistics import can_sample, draws, gather, standard_error
from leanbayes.kl.taylor import taylor_mean, taylor_powers
from leanbayes.posteriors import Family, Form, RandomWeight, Statistics
from leanbayes.posteriors.terms import Number, log

__all__ = ["Estimate", "Method", "MonteCarlo", "from_statistics"]

Method = Literal["exact", "taylor", "streamed", "direct"]

_GROUPS = 32  # of draws, whose spread gives the standard error


@dataclass(frozen=True)
class Estimate:
    """A divergence in nats as Monte Carlo knows it: its value, its standard error, and how it was found.

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
    """KL(q‖p) ≈ 1/M Σ log q(wᵢ) − log p(wᵢ), wᵢ ~ q, reparameterised (003, eq. 2, 3).

    Where log p is made of terms whose mean needs only statistics of the noise, the estimate is made of these (003,
    Theorems 1 and 2: "exact"). For other pairs value and gradient are accumulated over the draws ("streamed"), which
    is right for any prior, or ``taylor`` is asked for. Neither graph nor memory depends on M in any of them; where the
    law of the statistics is known, nor does the time.

    Args:
        samples: M.
        direct: the naive graph, which grows with M, for comparison.
        taylor: the degree of a polynomial for log p, used for pairs without an exact tuple (003, Theorem 3).
        around: where the polynomial is taken; by default at each weight's own mean.
        statistics: "sampled" from their law, "accumulated" over the draws, or "auto": the cheaper one that is exact.

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
            raise InputError(f"taylor is a degree of at least 1, without direct=True; got {self}")
        if self.around is not None and (self.taylor is None or not math.isfinite(self.around)):
            raise InputError(f"around is a finite number, and where a Taylor polynomial is taken; got {self}")
        if self.statistics not in ("auto", "sampled", "accumulated"):
            raise UnknownName.of("way to statistics", self.statistics, ["auto", "sampled", "accumulated"])

    def __call__(self, weight: RandomWeight, prior: Distribution, generator: torch.Generator | None = None) -> Tensor:
        """Nats for one tensor. Half precision is summed in float32."""
        weight = weight.widened()
        return self._value(weight, prior, self.samples, generator).to(weight.spread.dtype)

    def estimate(self, weight: RandomWeight, prior: Distribution, generator: torch.Generator | None = None) -> Estimate:
        """The same without a graph, with its standard error, from groups of draws."""
        weight, groups = weight.widened(), min(self.samples, _GROUPS)
        sizes = [self.samples // groups + (i < self.samples % groups) for i in range(groups)]
        with torch.no_grad():
            values = torch.stack([self._value(weight, prior, size, generator) for size in sizes]).double()
        value = (values * values.new_tensor(sizes)).sum().item() / self.samples
        method = self.method(weight.family, prior)
        how = self._how(resolve(weight.family, prior), method)
        return Estimate(value, standard_error(values, sizes), self.samples, method, how)

    def method(self, family: Family, prior: Distribution) -> Method:
        """How this pair is computed; an error where its divergence is infinite."""
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
        """Where the statistics come from."""
        if method in ("streamed", "direct") or self.statistics == "accumulated":
            return "accumulated"
        wanted = pair.wanted if method == "exact" else taylor_powers(pair, self.taylor or 1, 2)
        known = self.statistics == "sampled" or pair.family.sampled_exactly
        return "sampled" if known and can_sample(pair.family, wanted) else "accumulated"

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
        found = gather(family, wanted, samples, spread, generator, self.statistics)
        log_p = taylor_mean(prior, form, family.noise_mean(), self.taylor, self.around, found)
        return _log_posterior(form, found) - log_p


def from_statistics(pair: Pair, form: Form, found: Statistics) -> Tensor:
    """KL(q‖p) of a pair with an exact tuple, of means over noise: Monte Carlo, or exact if they are expectations."""
    assert pair.terms is not None
    total = _log_posterior(form, found)
    for term, coefficient in pair.terms.items():
        total = total - _summed(coefficient, expectation(term, form, found), form.scale)
    return total


def _log_posterior(form: Form, found: Statistics) -> Tensor:
    """The mean of log q(x), summed: log f(ξ) − log σ, and −log x where x = e^b."""
    total = found.log_density - form.scale.log().sum()
    if form.exponential:
        total = total - _summed(1.0, expectation(log(), form, found), form.scale)
    return total


def _summed(coefficient: Number, values: Number, like: Tensor) -> Number:
    """Σ coefficient·value over the coordinates."""
    if isinstance(coefficient, Tensor) and coefficient.dim():
        return (coefficient * values).expand_as(like).sum()
    return coefficient * (values.sum() if isinstance(values, Tensor) else values * like.numel())


def _one_chunk(pair: Pair, mean: Tensor, spread: Tensor, noise: Tensor, naive: bool) -> Tensor:
    """Σ log q(wᵢ) − log p(wᵢ) over the draws of a chunk; if ``naive``, with every step of log q in the graph."""
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
    """One subgraph a draw."""
    total = torch.zeros((), dtype=spread.dtype, device=spread.device)
    for chunk in draws(pair.family, samples, spread, generator):
        for noise in chunk:
            total = total + _one_chunk(pair, mean, spread, noise[None], naive=True)
    return total / samples


def _streamed(pair: Pair, mean: Tensor, spread: Tensor, samples: int, generator: torch.Generator | None) -> Tensor:
    """The mean over draws and its gradient, both accumulated: one node, whatever M and the prior are.

    The mean of gradients is the gradient of the mean, so this is the direct estimate to the last digits.
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
    found: Tensor = _WithGradients.apply(mean, spread, total / samples, *(g / samples for g in gradients))
    return found


class _WithGradients(torch.autograd.Function):
    """A number whose gradients are known already."""

    @staticmethod
    def forward(mean: Tensor, spread: Tensor, value: Tensor, by_mean: Tensor, by_spread: Tensor) -> Tensor:  # noqa: ARG004
        """The number."""
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:  # noqa: ARG004
        """Keep the gradients."""
        ctx.save_for_backward(*inputs[3:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Times what comes from behind."""
        by_mean, by_spread = ctx.saved_tensors
        return gradient * by_mean, gradient * by_spread, None, None, None


def _is_learned(prior: Distribution) -> bool:
    """Whether the prior has parameters that want a gradient of their own."""
    parameters: Sequence[Any] = [getattr(prior, name, None) for name in prior.arg_constraints]
    return torch.is_grad_enabled() and any(isinstance(p, Tensor) and p.requires_grad for p in parameters)


def _refuse_infinite(pair: Pair, name: str) -> None:
    if pair.infinite is not None:
        raise InputError(_infinite(pair, name, pair.infinite))


def _infinite(pair: Pair, name: str, reason: str) -> str:
    return (
        f"KL(q‖p) of {name!r} is infinite: {reason}. The prior must give density to every value that the posterior can "
        f"take; of 003's Table 1 a {type(pair.family).__name__} posterior can have {finite_priors(pair.family)}"
    )
