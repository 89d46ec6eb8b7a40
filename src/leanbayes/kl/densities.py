"""The log-densities of priors as sums of constants, powers and logarithms (Nazarovs et al. 2021, eq. 5)."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributions
from torch.distributions import Distribution

from leanbayes.posteriors.terms import CONSTANT, Number, Term, log, power
from leanbayes.priors import ErrorLaw, InverseGaussianLaw, LogisticLaw, RadialLaw

__all__ = ["Terms", "growth", "terms_of"]

Terms = dict[Term, Number]


def terms_of(prior: Distribution, positive: bool) -> Terms | None:
    """Write log p(x) as Σ coefficient · term(x).

    Args:
        prior: the distribution p of one number.
        positive: whether x is known to be above 0. Then |x| is x, and every power is defined.

    Returns:
        The coefficient of each term, or None where log p has no such form.

    >>> [str(term) for term in terms_of(distributions.Gamma(2.0, 1.0), positive=True)]
    ['log x', 'x', '1']
    """
    terms = _KNOWN.get(type(prior))
    return None if terms is None else terms(_Wide(prior), positive)


class _Wide:
    """The parameters of a prior, scalars in float64, because sums over many weights multiply a coefficient."""

    def __init__(self, prior: Distribution) -> None:
        self.prior = prior

    def __getattr__(self, name: str) -> Tensor:
        value: Tensor = getattr(self.prior, name)
        return value.double() if value.dim() == 0 and value.device.type != "mps" else value


def growth(prior: Distribution) -> float:
    """Return the power of |x| with which −log p(x) grows, or 0 where the tails of p are not known."""
    if isinstance(prior, ErrorLaw):
        return 2 / float(prior.shape)
    known = {distributions.Normal: 2.0, RadialLaw: 2.0, distributions.Laplace: 1.0, LogisticLaw: 1.0}
    return known.get(type(prior), 0.0)


def _normal(prior: Any, positive: bool) -> Terms:  # noqa: ARG001
    """−(x − m)²/2s² − log s√2π."""
    return _polynomial(prior.loc, 0.5 / prior.scale.square(), 2, prior.scale.log() + 0.5 * math.log(2 * math.pi))


def _laplace(prior: Any, positive: bool) -> Terms | None:
    """−|x − m|/s − log 2s.

    It is a polynomial only where x − m cannot change its sign; Nazarovs et al. 2021 (Table 1) take it for one always.
    """
    if not positive or not bool((prior.loc <= 0).all()):
        return None
    return _polynomial(prior.loc, 1 / prior.scale, 1, prior.scale.log() + math.log(2))


def _error(prior: Any, positive: bool) -> Terms | None:
    """−½|(x − m)/s|^p − log(s·constant) with p = 2/c.

    It is a polynomial if p is even, or if p is whole and x − m is positive.
    """
    p, c = 2 / float(prior.shape), float(prior.shape)
    normaliser = prior.scale.log() + (c / 2 + 1) * math.log(2) + math.lgamma(1 + c / 2)
    whole = p == round(p)
    one_sided = positive and bool((prior.loc <= 0).all())
    if whole and (p % 2 == 0 or one_sided):
        return _polynomial(prior.loc, 0.5 * prior.scale**-p, int(p), normaliser)
    if positive and not bool(prior.loc.any()):
        return {power(p): -0.5 * prior.scale**-p, CONSTANT: -normaliser}
    return None


def _exponential(prior: Any, positive: bool) -> Terms | None:
    """−λx + log λ."""
    return {power(1): -prior.rate, CONSTANT: prior.rate.log()} if positive else None


def _gamma(prior: Any, positive: bool) -> Terms | None:
    """(a − 1) log x − βx + a log β − log Γ(a); Erlang and Chi-squared too."""
    if not positive:
        return None
    a, rate = prior.concentration, prior.rate
    return {log(): a - 1, power(1): -rate, CONSTANT: a * rate.log() - torch.lgamma(a)}


def _inverse_gamma(prior: Any, positive: bool) -> Terms | None:
    """−(a + 1) log x − β/x + a log β − log Γ(a)."""
    if not positive:
        return None
    a, rate = prior.concentration, prior.rate
    return {log(): -a - 1, power(-1): -rate, CONSTANT: a * rate.log() - torch.lgamma(a)}


def _weibull(prior: Any, positive: bool) -> Terms | None:
    """(k − 1) log x − (x/λ)^k + log k − k log λ; Rayleigh too."""
    k, scale = prior.concentration, prior.scale
    if not positive or k.dim():
        return None
    return {log(): k - 1, power(k.item()): -(scale**-k), CONSTANT: k.log() - k * scale.log()}


def _log_normal(prior: Any, positive: bool) -> Terms | None:
    """−log x − (log x − m)²/2s² − log s√2π."""
    if not positive:
        return None
    m, precision = prior.loc, prior.scale.square().reciprocal()
    constant = -0.5 * precision * m.square() - prior.scale.log() - 0.5 * math.log(2 * math.pi)
    return {log(): m * precision - 1, log(2): -0.5 * precision, CONSTANT: constant}


def _half_normal(prior: Any, positive: bool) -> Terms | None:
    """−x²/2s² + ½ log(2/πs²)."""
    if not positive:
        return None
    return {power(2): -0.5 / prior.scale.square(), CONSTANT: 0.5 * math.log(2 / math.pi) - prior.scale.log()}


def _inverse_gaussian(prior: Any, positive: bool) -> Terms | None:
    """−1.5 log x − λx/2m² − λ/2x + λ/m + ½ log(λ/2π); standard Wald too."""
    if not positive:
        return None
    m, shape = prior.loc, prior.concentration
    constant = 0.5 * (shape.log() - math.log(2 * math.pi)) + shape / m
    return {log(): -1.5, power(1): -0.5 * shape / m.square(), power(-1): -0.5 * shape, CONSTANT: constant}


def _polynomial(loc: Tensor, factor: Tensor, degree: int, normaliser: Tensor) -> Terms:
    """−factor·(x − m)^degree − normaliser, multiplied out."""
    top: Terms = {power(degree): -factor}
    if loc.dim() == 0 and loc.device.type == "cpu" and not loc.requires_grad and loc.item() == 0:
        return top | {CONSTANT: -normaliser}
    lower: Terms = {power(k): -factor * math.comb(degree, k) * (-loc) ** (degree - k) for k in range(1, degree)}
    return top | lower | {CONSTANT: -factor * (-loc) ** degree - normaliser}


_KNOWN: dict[type[Distribution], Callable[[Any, bool], Terms | None]] = {
    distributions.Normal: _normal,
    distributions.Laplace: _laplace,
    ErrorLaw: _error,
    distributions.Exponential: _exponential,
    distributions.Gamma: _gamma,
    distributions.Chi2: _gamma,
    distributions.InverseGamma: _inverse_gamma,
    distributions.Weibull: _weibull,
    distributions.LogNormal: _log_normal,
    distributions.HalfNormal: _half_normal,
    InverseGaussianLaw: _inverse_gaussian,
}
