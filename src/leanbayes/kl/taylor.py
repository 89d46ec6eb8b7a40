"""E[log p] by a Taylor polynomial of log p (Nazarovs et al. 2021, Theorem 3), for pairs that are not "exact"."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from leanbayes.errors import InputError
from leanbayes.kl.pair import Pair, expectation
from leanbayes.posteriors import Form, Statistics, Term
from leanbayes.posteriors.terms import power

__all__ = ["taylor_coefficients", "taylor_mean", "taylor_powers"]


def taylor_coefficients(function: Any, point: Tensor, degree: int) -> list[Tensor]:
    """Return g⁽ᵏ⁾(x₀)/k! for k = 0 … degree, for a function g that acts on each number alone.

    For the logarithm at 1 the coefficients are (−1)^{k+1}/k; Example 1 of Nazarovs et al. 2021 has 1/k! instead.

    Args:
        function: the function g.
        point: the point x₀, or several points.
        degree: the degree of the polynomial.

    >>> [round(c.item(), 4) for c in taylor_coefficients(torch.log, torch.tensor(1.0), 4)]
    [0.0, 1.0, -0.5, 0.3333, -0.25]
    """
    with torch.enable_grad():
        x = point.detach().requires_grad_()
        value = function(x)
        coefficients = [value.detach()]
        for k in range(1, degree + 1):
            if value.requires_grad:
                (value,) = torch.autograd.grad(value.sum(), x, create_graph=k < degree)
            else:
                value = torch.zeros_like(x)
            coefficients.append(value.detach() / math.factorial(k))
    return coefficients


def taylor_powers(pair: Pair, degree: int, count: int) -> frozenset[Term]:
    """Return the statistics that a polynomial needs, or raise `InputError` where they do not exist."""
    wanted = frozenset(power(k) for k in range(1, degree + 1))
    if any(math.isinf(pair.family.expected(term, count)) for term in wanted):
        raise InputError(
            f"a Taylor polynomial of degree {degree} has no finite mean: {pair.family} has too heavy tails"
        )
    if getattr(pair.prior, "joint", False):
        raise InputError(f"{type(pair.prior).__name__} has one density for a whole tensor, so no Taylor polynomial")
    return wanted


def taylor_mean(
    prior: Distribution, form: Form, centre: float, degree: int, around: float | None, statistics: Statistics
) -> Tensor:
    """Return the mean over draws of the Taylor polynomial of log p at x₀, summed over the coordinates.

    For x = ±e^b the polynomial is one in b. The gradient is that of the polynomial with constant coefficients.

    Args:
        prior: the prior p.
        form: how the variable is made of noise.
        centre: the mean of the noise.
        degree: the degree of the polynomial.
        around: the point x₀, as in Example 1 of Nazarovs et al. 2021; None for the mean of each weight.
        statistics: the means of powers of the noise.
    """
    location = torch.zeros_like(form.scale) if form.location is None else form.location
    if around is None:
        point = (location + centre * form.scale).detach()
    else:
        point = form.scale.new_tensor(around)
        point = point.abs().log() if form.exponential else point
    shifted = Form(location - point, form.scale)
    coefficients = taylor_coefficients(lambda b: prior.log_prob(form.variable(b)), point, degree)
    total = coefficients[0].expand_as(form.scale).sum()
    for k in range(1, degree + 1):
        total = total + (coefficients[k] * expectation(power(k), shifted, statistics)).sum()
    return total
