"""Every posterior with every prior of Nazarovs et al. 2021, Table 1, and their divergences by quadrature in float64."""

from functools import cache

import numpy as np
import torch
from torch import Tensor, distributions
from torch.distributions import Distribution

from leanbayes.kl.pair import priors_of_table_1, resolve
from leanbayes.posteriors import Family, RandomWeight
from leanbayes.priors import ErrorLaw, HorseshoeLaw, InverseGaussianLaw, LogisticLaw, RadialLaw, rayleigh, wald
from tests.posteriors.conformance import CASES
from tests.posteriors.oracles import HorseshoeNoise, Noise, nodes, radial_marginal

MEANS, SCALES = [-1.2, 0.4, 2.0], [0.3, 0.8, 0.15]


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


PRIORS: dict[str, Distribution] = {
    "Normal": distributions.Normal(number(0.3), number(1.5)),
    "Laplace": distributions.Laplace(number(-0.2), number(1.3)),
    "Logistic": LogisticLaw(number(0.1), number(0.8)),
    "Horseshoe": HorseshoeLaw(number(0.05), number(0.7)),
    "Radial": RadialLaw(number(0.0), number(1.4)),
    "Error": ErrorLaw(number(-0.1), number(1.2), number(1.5)),
    "Exponential": distributions.Exponential(number(1.7)),
    "Standard Wald": wald(number(2.0)),
    "Rayleigh": rayleigh(number(1.2)),
    "Dirichlet": distributions.Dirichlet(torch.ones(2, dtype=torch.float64)),
    "Chi-squared": distributions.Chi2(number(3.0)),
    "Pareto": distributions.Pareto(number(1.0), number(2.0)),
    "Inverse-Gamma": distributions.InverseGamma(number(3.0), number(0.7)),
    "Gamma": distributions.Gamma(number(2.5), number(1.4)),
    "Erlang": distributions.Gamma(number(3.0), number(0.9)),
    "Log-Normal": distributions.LogNormal(number(0.3), number(0.9)),
    "Weibull": distributions.Weibull(number(1.1), number(1.7)),
    "Inverse-Gaussian": InverseGaussianLaw(number(1.5), number(2.0)),
}
assert list(PRIORS) == list(priors_of_table_1())

FAMILIES: dict[str, Family] = {str(case): case.family for case in CASES}
NOISE: dict[str, Noise | None] = {str(case): case.noise for case in CASES}
FINITE = [(a, b) for a, family in FAMILIES.items() for b in PRIORS if resolve(family, PRIORS[b]).infinite is None]


def weight(family: Family, copies: int = 1) -> RandomWeight:
    mean, scale = (
        torch.tensor(values, dtype=torch.float64).repeat(copies).requires_grad_() for values in (MEANS, SCALES)
    )
    return RandomWeight("w", mean, None, scale, family)


@cache
def grid(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points, masses and log-densities of a family's noise."""
    noise = NOISE[name]
    assert noise is not None
    positive = bool(np.isneginf(noise.logpdf(-1.0)))
    points, weights = nodes(positive, wide=isinstance(noise, HorseshoeNoise))
    with np.errstate(over="ignore"):
        log_density = noise.logpdf(points)
    used = log_density > -200
    points, log_density = points[used], log_density[used]
    return points, weights[used] * np.exp(log_density), log_density


def quadrature(name: str, prior: str, mean: float, scale: float, count: int = 1) -> float:
    """∫ f(ξ) (log f(ξ) − log|dx/dξ| − log p(x(ξ))) dξ for one coordinate; of a Radial one without its entropy."""
    family, law = FAMILIES[name], PRIORS[prior]
    m, s = number(mean), number(scale)
    form = family.form(m, s, resolve(family, law).part)
    if NOISE[name] is None:
        points, mass = radial_marginal(count)
        log_q = np.zeros_like(points)
    else:
        points, mass, log_density = grid(name)
        base = form.base(torch.from_numpy(points)).numpy()
        log_q = log_density - np.log(scale) - (base if form.exponential else 0)
    x = form.variable(form.base(torch.from_numpy(points)))
    if prior == "Radial":  # of one coordinate it is Normal
        law = distributions.Normal(law.loc, law.scale)
    log_p = law.log_prob(x)
    return float(mass @ (log_q - log_p.numpy()))
