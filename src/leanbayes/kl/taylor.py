"""E[log p] by a Taylor polynomial of log p (003, Theorem 3), for pairs without an exact tuple."""

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
    """g⁽ᵏ⁾(x₀)/k! for k = 0 … degree, of a function that acts number by number.

    For log at 1 they are (−1)^{k+1}/k, where 003's Example 1 has 1/k!.

    >>> [round(c.item(), 4) for c in taylor_coefficients(torch.log, torch.tensor(1.0), 4)]
    [0.0, 1.0, -0.5, 0.3333, -0.25]
    """
    with torch.enable_grad():
        x = point.detach().requires_grad_()
        value = function(x)
        found = [value.detach()]
        for k in range(1, degree + 1):
            if value.requires_grad:
                (value,) = torch.autograd.grad(value.sum(), x, create_graph=k < degree)
            else:
                value = torch.zeros_like(x)
            found.append(value.detach() / math.factorial(k))
    return found


def taylor_powers(pair: Pair, degree: int, count: int) -> frozenset[Term]:
    """The statistics that a polynomial of that degree needs; an error where they do not exist."""
    wanted = frozenset(power(k) for k in range(1, degree + 1))
    if any(math.isinf(pair.family.expected(term, count)) for term in wanted):
        raise InputError(
            f"a Taylor polynomial of degree {degree} has no finite mean: {pair.family} has too heavy tails"
        )
    if getattr(pair.prior, "joint", False):
        raise InputError(f"{type(pair.prior).__name__} has one density for a whole tensor, so no Taylor polynomial")
    return wanted


def taylor_mean(
    prior: Distribution, form: Form, centre: float, degree: int, around: float | None, found: Statistics
) -> Tensor:
    """The mean over draws of the polynomial that agrees with log p at x₀, summed over the coordinates.

    x₀ is ``around``, as in 003's Example 1, or each weight's own mean. For x = ±e^b the polynomial is one in b. The
    gradient is that of the polynomial, whose coefficients are held.
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
        total = total + (coefficients[k] * expectation(power(k), shifted, found)).sum()
    return total
