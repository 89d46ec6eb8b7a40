"""What is known about a pair of posterior family and prior: what the prior describes, and how its log p is made."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, distributions
from torch.distributions import Distribution, constraints

from leanbayes.kl.densities import Terms, growth, terms_of
from leanbayes.posteriors import Family, Form, Statistics, Term
from leanbayes.posteriors.terms import Number, log, power
from leanbayes.priors import ErrorLaw, HorseshoeLaw, InverseGaussianLaw, LogisticLaw, RadialLaw, rayleigh, wald

__all__ = ["Pair", "expectation", "finite_priors", "priors_of_table_1", "resolve", "statistics_of"]


@cache
def priors_of_table_1() -> dict[str, Distribution]:
    """Return the priors of Nazarovs et al. 2021, Table 1, one of each.

    They are made when somebody asks for them, because the first distribution makes torch import sympy.
    """
    return {
        "Normal": distributions.Normal(0.0, 1.0),
        "Laplace": distributions.Laplace(0.0, 1.0),
        "Logistic": LogisticLaw(0.0, 1.0),
        "Horseshoe": HorseshoeLaw(0.0, 1.0),
        "Radial": RadialLaw(0.0, 1.0),
        "Error": ErrorLaw(0.0, 1.0, shape=1.5),
        "Exponential": distributions.Exponential(1.0),
        "Standard Wald": wald(2.0),
        "Rayleigh": rayleigh(1.0),
        "Dirichlet": distributions.Dirichlet(torch.ones(2)),
        "Chi-squared": distributions.Chi2(3.0),
        "Pareto": distributions.Pareto(1.0, 2.0),
        "Inverse-Gamma": distributions.InverseGamma(3.0, 1.0),
        "Gamma": distributions.Gamma(2.0, 1.0),
        "Erlang": distributions.Gamma(3.0, 1.0),
        "Log-Normal": distributions.LogNormal(0.0, 1.0),
        "Weibull": distributions.Weibull(1.0, 2.5),
        "Inverse-Gaussian": InverseGaussianLaw(1.5, 2.0),
    }


@dataclass(frozen=True)
class Pair:
    """A posterior family and a prior.

    Attributes:
        family: the posterior family.
        prior: the prior.
        part: whether the prior describes the positive part of the weight.
        terms: log p as terms, where its mean over draws needs only statistics of the noise; otherwise None.
        wanted: these statistics.
        infinite: why KL(q‖p) is infinite; None if it is finite.
    """

    family: Family
    prior: Distribution
    part: bool
    terms: Terms | None
    wanted: frozenset[Term]
    infinite: str | None


def resolve(family: Family, prior: Distribution, count: int = 2) -> Pair:
    """Return what is known about KL(q‖p) of a family and a prior for a tensor of ``count`` random coordinates."""
    part, outside = _variable(family, prior)
    if outside is not None:
        return Pair(family, prior, part, None, frozenset(), outside)
    terms = terms_of(prior, positive=part)
    wanted: set[Term] = set()
    for term in terms or ():
        needs = statistics_of(term, family, part)
        if needs is None:
            terms, wanted = None, set()
            break
        wanted |= needs
    if terms is not None and family.relative:
        wanted.add(power(1))  # log q(x) has the term −b
    return Pair(family, prior, part, terms, frozenset(wanted), _diverging(family, prior, wanted, terms, count))


def finite_priors(family: Family) -> list[str]:
    """Return the names of the priors in `priors_of_table_1` to which a family has a finite divergence."""
    return [name for name, prior in priors_of_table_1().items() if resolve(family, prior).infinite is None]


def statistics_of(term: Term, family: Family, part: bool) -> set[Term] | None:
    """Return the means over noise that the mean of term(x) needs, or None if no fixed number of them is enough."""
    k = term.order
    if term.kind == "power" and k == 0:
        return set()
    if family.relative:  # x = e^b: Corollary 2, in b
        return {power(i) for i in range(1, int(k) + 1)} if term.kind == "log" else None
    if part:  # x = σξ: Theorem 1
        return {term} if term.kind == "power" else {log(i) for i in range(1, int(k) + 1)}
    if term.kind == "log" or k != int(k) or k < 0:
        return None
    return {power(i) for i in range(1, int(k) + 1)}  # x = μ + σξ: Theorem 2


def expectation(term: Term, form: Form, statistics: Statistics) -> Number:
    """Return the mean of term(x) over the draws that the statistics stand for, for each coordinate."""
    k = term.order
    if term.kind == "power" and k == 0:
        return 1.0
    if form.exponential:
        return _binomial(form.location, form.scale, int(k), statistics, power)
    if form.location is None:
        if term.kind == "power":
            return form.scale**k * statistics.terms[term]
        return _binomial(form.scale.log(), None, int(k), statistics, log)
    return _binomial(form.location, form.scale, int(k), statistics, power)


def _binomial(
    location: Tensor | None, scale: Tensor | None, k: int, statistics: Statistics, term: Callable[[int], Term]
) -> Number:
    """Return Σ C(k, i) location^{k−i} scale^i · mean of ξ^i (or of log^i ξ)."""
    assert location is not None
    total = location if k == 1 else location**k
    for i in range(1, k + 1):
        part: Number = statistics.terms[term(i)] if scale is None else scale**i * statistics.terms[term(i)]
        if i < k:
            part = part * (math.comb(k, i) * (location if k - i == 1 else location ** (k - i)))
        total = total + part
    return total


def _variable(family: Family, prior: Distribution) -> tuple[bool, str | None]:
    """Return whether the prior describes the positive part, and why the posterior leaves its support, if it does."""
    try:
        support = prior.support
    except NotImplementedError:
        return False, None
    low, high = getattr(support, "lower_bound", None), getattr(support, "upper_bound", None)
    reason = f"{type(prior).__name__} gives density to {support} alone, and the posterior takes other values"
    if isinstance(support, type(constraints.simplex)) or high is not None:
        return False, reason
    if low is None:
        return False, None
    return True, None if family.positive and float(low) <= 0 else reason


def _diverging(family: Family, prior: Distribution, wanted: set[Term], terms: Terms | None, count: int) -> str | None:
    """Return why the divergence is infinite, or None if it is finite."""
    for term in sorted(wanted, key=lambda term: (term.kind, term.order)):
        if math.isinf(family.expected(term, count)):
            return f"the posterior's noise has no finite mean of {term}, which the prior's density needs"
    order = 0.0 if terms is not None else growth(prior)
    if order and not family.has_moment(order):
        return f"the posterior's tails have no finite mean of |w|^{order:g}, which the prior's density needs"
    return None
