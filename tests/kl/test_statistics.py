"""Statistics drawn from their own law, against the means over real draws."""

import math

import pytest
import torch
from scipy import stats

from leanbayes.errors import InputError, UnknownName
from leanbayes.kl import Exact, MonteCarlo
from leanbayes.kl.statistics import accumulated, draws, expected, gather, way
from leanbayes.posteriors import (
    Erlang,
    Exponential,
    Family,
    Gamma,
    InverseGamma,
    Laplace,
    LogNormal,
    Normal,
    Radial,
    RandomWeight,
    Rayleigh,
    Wald,
    Weibull,
)
from leanbayes.posteriors.terms import Statistics, Term, log, power
from tests.kl.pairs import FAMILIES, FINITE, PRIORS, weight

COORDINATES = 20_000
# Each family with the terms that meet a parameter, whose law is exact; a mean of log ξ is put at its expectation.
KNOWN: list[tuple[Family, list[Term]]] = [
    (Normal(), [power(1), power(2)]),
    (LogNormal(), [power(1), power(2)]),
    (Exponential(), [power(1)]),
    (Gamma(shape=2.4), [power(1)]),
    (Gamma(shape=0.6), [power(1)]),
    (Erlang(shape=3), [power(1)]),
    (Rayleigh(), [power(2.0)]),
    (Weibull(shape=1.7), [power(1.7)]),
    (InverseGamma(shape=9.0), [power(-1)]),
    (Wald(shape=2.5), [power(1), power(-1)]),
]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def statistics(family: Family, terms: list[Term], samples: int, how: str) -> Statistics:
    like = torch.zeros(COORDINATES, dtype=torch.float64)
    return gather(family, frozenset(terms), samples, like, generator(samples), how)


@pytest.mark.parametrize("samples", [1, 2, 17])
@pytest.mark.parametrize(("family", "terms"), KNOWN, ids=lambda value: str(value) if isinstance(value, Family) else "")
class TestLaw:
    def test_each_statistic(self, family, terms, samples):
        drawn, exact = (statistics(family, terms, samples, how) for how in ("sampled", "accumulated"))
        for term in terms:
            a, b = drawn.terms[term], exact.terms[term]
            assert stats.ks_2samp(a.numpy(), b.numpy()).pvalue > 1e-3, term
            assert abs(a.mean() - family.expected(term, 1)) < 4 * a.std() / math.sqrt(COORDINATES)

    def test_all_of_them_together(self, family, terms, samples):
        """Second moments of every two of them, and a combination of both by Kolmogorov and Smirnov."""
        drawn, exact = (statistics(family, terms, samples, how) for how in ("sampled", "accumulated"))
        for first in terms:
            for second in terms:
                a, b = (result.terms[first] * result.terms[second] for result in (drawn, exact))
                assert abs(a.mean() - b.mean()) < 4.5 * ((a.var() + b.var()) / COORDINATES).sqrt(), (first, second)
        if len(terms) == 2:
            for combine in (lambda x, y: x - y, lambda x, y: y - x.square(), lambda x, y: x * y, torch.maximum):
                a, b = (combine(*(result.terms[term] for term in terms)).numpy() for result in (drawn, exact))
                if samples > 1 or a.std() > 1e-6:
                    assert stats.ks_2samp(a, b).pvalue > 1e-3

    def test_the_density_and_logarithms_are_right_on_average(self, family, terms, samples):
        """They add a constant to the KL; given the other statistics they are at their expectation."""
        wanted = [*terms, log()] if family.positive and not family.relative else terms
        drawn, exact = (statistics(family, wanted, samples, how) for how in ("sampled", "accumulated"))
        noise = family.noise(torch.zeros(COORDINATES, dtype=torch.float64), samples, generator(9))
        error = family.log_noise(noise).std() * math.sqrt(2 * COORDINATES / samples)
        assert abs(drawn.log_density - exact.log_density) < 4.5 * error
        assert abs(drawn.log_density + family.noise_entropy(COORDINATES)) < 4.5 * error
        if log() in wanted:
            logarithm = torch.as_tensor(drawn.terms[log()], dtype=torch.float64).mean()
            assert abs(logarithm - family.expected(log(), 1)) < 4.5 * noise.log().std() / math.sqrt(
                COORDINATES * samples
            )


@pytest.mark.parametrize(
    ("name", "prior"),
    [("Normal", "Normal"), ("Exponential", "Gamma"), ("Wald", "Inverse-Gaussian"), ("LogNormal", "Log-Normal")],
)
def test_estimates_from_sampled_statistics_have_the_law_of_estimates_from_draws(name, prior):
    """The gradients: of 2000 coordinates that are alike, by Kolmogorov and Smirnov."""
    result = []
    for how in ("sampled", "accumulated"):
        many = weight(FAMILIES[name], 2000)
        value = MonteCarlo(5, statistics=how)(many, PRIORS[prior], generator(3))
        result.append(torch.autograd.grad(value, many.spread)[0].view(2000, 3))
    for a, b in zip(*(gradient.T for gradient in result), strict=True):
        assert stats.ks_2samp(a.numpy(), b.numpy()).pvalue > 1e-3


def test_time_does_not_depend_on_the_number_of_draws():
    """10¹² draws would take years one by one."""
    one = weight(FAMILIES["Normal"], 100)
    result = MonteCarlo(10**12)(one, PRIORS["Normal"], generator())
    assert result.item() == pytest.approx(Exact()(one, PRIORS["Normal"]).item(), rel=1e-5)


def test_statistics_that_nothing_can_be_integrated_out_of():
    with pytest.raises(InputError, match=r'no part of the noise of Laplace.* of x, x\^2; use statistics="accumulated"'):
        MonteCarlo(3, statistics="integrated")(weight(Laplace()), PRIORS["Normal"])
    assert way(Laplace(), {power(2)}, "integrated") == "accumulated"


def test_the_default_is_sampled_where_that_is_exact():
    def is_sampled(family: Family, wanted: set[Term]) -> bool:
        like = torch.zeros(50, dtype=torch.float64)
        auto = gather(family, wanted, 3, like, generator(), "auto")
        real = gather(family, wanted, 3, like, generator(), "accumulated")
        return bool(auto.log_density != real.log_density)

    assert is_sampled(Normal(), {power(1), power(2)})
    assert not is_sampled(Normal(), {power(4)})
    assert not is_sampled(Laplace(), {power(2)})
    assert is_sampled(
        Radial(), {power(2)}
    )  # not from a law, which is only nearly right, but with directions integrated
    assert way(Radial(), {power(2)}, "auto") == "integrated"
    assert is_sampled(Wald(), {power(-1)})


def test_an_unknown_law_is_said():
    with pytest.raises(InputError, match=r'means of x, x\^2 is not known for the noise of Laplace.*"accumulated"'):
        MonteCarlo(3, statistics="sampled")(weight(Laplace()), PRIORS["Normal"])
    with pytest.raises(UnknownName, match="unknown way to statistics 'quick'"):
        MonteCarlo(3, statistics="quick")


@pytest.mark.parametrize("size", [1, 3, 100_000])
def test_chunks_hold_every_draw_once(size):
    like = torch.zeros(size)
    shapes = [noise.shape for noise in draws(Normal(), 70, like, generator())]
    assert sum(shape[0] for shape in shapes) == 70
    assert all(shape[1:] == (size,) and shape.numel() <= max(size, 2**18) for shape in shapes)


def test_accumulated_means():
    like = torch.zeros(4, 5, dtype=torch.float64)
    result = accumulated(Gamma(), {power(1), power(-1), log(2)}, 11, like, generator())
    noise = Gamma().noise(like, 11, generator())
    for term, values in ((power(1), noise), (power(-1), 1 / noise), (log(2), noise.log().square())):
        torch.testing.assert_close(result.terms[term], values.mean(0))
    assert result.log_density.item() == pytest.approx(Gamma().log_noise(noise).sum().item() / 11)
    assert not result.log_density.requires_grad


def test_expected_statistics_are_the_limit():
    limit = expected(Wald(shape=2.5), {power(1), power(-1)}, 7)
    assert limit.terms == {power(1): 1.0, power(-1): pytest.approx(1 + 1 / 2.5)}
    assert limit.log_density == -Wald(shape=2.5).noise_entropy(7)


def test_half_precision_and_a_scalar():
    for name, prior in FINITE:
        if prior in ("Normal", "Gamma"):
            half = RandomWeight("w", torch.tensor(0.5).bfloat16(), None, torch.tensor(0.25).bfloat16(), FAMILIES[name])
            result = MonteCarlo(3)(half, PRIORS[prior], generator())
            assert (result.shape, result.dtype) == ((), torch.float32)
            assert result.isfinite()
