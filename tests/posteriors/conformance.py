"""What every posterior family must do. A new family adds a `Case` to `CASES` and inherits every check in `CHECKS`."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from scipy import stats
from torch import Tensor

from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError
from leanbayes.kl import Exact, MonteCarlo
from leanbayes.posteriors import (
    FAMILIES,
    Erlang,
    Exponential,
    Family,
    Gamma,
    GeneralisedError,
    Horseshoe,
    InverseGamma,
    Laplace,
    LogGamma,
    Logistic,
    LogNormal,
    Normal,
    Radial,
    RandomWeight,
    Rayleigh,
    Wald,
    Weibull,
)
from leanbayes.posteriors.terms import log, power
from leanbayes.priors import HorseshoeLaw
from tests.oracles import mean_within_standard_errors, moments_within_standard_errors
from tests.posteriors.oracles import HORSESHOE, Noise, expectation


@dataclass(frozen=True)
class Case:
    """A family, the law of one coordinate of its noise, and a rho whose spread is ordinary: neither tiny nor huge."""

    family: Family
    noise: Noise | None
    rho: tuple[float, ...] = (-3.0, -0.5, 0.0, 1.0, 2.5)

    def __str__(self) -> str:
        return type(self.family).__name__

    @property
    def has_variance(self) -> bool:
        return self.family.has_moment(2)

    def spread(self) -> Tensor:
        return self.family.spread(torch.tensor(self.rho, dtype=torch.float64))

    def weight(self, index: list[int] | None) -> RandomWeight:
        """Five random coordinates: the whole of a tensor, or some of twelve."""
        torch.manual_seed(1)
        if index is None:
            return RandomWeight("w", torch.randn(5, dtype=torch.float64), None, self.spread(), self.family)
        mean = torch.randn(3, 4, dtype=torch.float64)
        return RandomWeight("w", mean, torch.tensor(index, dtype=torch.int32), self.spread(), self.family)


CASES = [
    Case(Normal(), stats.norm),
    Case(Laplace(), stats.laplace),
    Case(Logistic(), stats.logistic),
    Case(Radial(), None),
    Case(Horseshoe(), HORSESHOE),
    Case(Exponential(), stats.expon),
    Case(Wald(shape=2.5), stats.invgauss(1 / 2.5, scale=2.5)),
    Case(Rayleigh(), stats.rayleigh),
    Case(Weibull(shape=1.7), stats.weibull_min(1.7)),
    Case(Erlang(shape=3), stats.erlang(3)),
    Case(Gamma(shape=2.4), stats.gamma(2.4)),
    Case(GeneralisedError(shape=1.5), stats.gennorm(2 / 1.5, scale=2**0.75)),
    Case(LogGamma(shape=1.3), stats.loggamma(1.3)),
    Case(InverseGamma(shape=9.0), stats.invgamma(9)),
    Case(LogNormal(), stats.norm, rho=(-3.0, -2.0, -1.0, -0.5, 0.0)),
]

CHECKS: list[Callable[[Case], None]] = []

INDEX = [0, 3, 4, 7, 11]
DRAWS = 40_000


def check(function: Callable[[Case], None]) -> Callable[[Case], None]:
    CHECKS.append(function)
    return function


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@check
def is_registered_by_its_class_name(case: Case) -> None:
    assert FAMILIES[type(case.family).__name__] is type(case.family)


@check
def is_a_frozen_configuration(case: Case) -> None:
    assert dataclasses.is_dataclass(case.family)
    assert case.family == dataclasses.replace(case.family)
    assert hash(case.family) == hash(dataclasses.replace(case.family))
    for field in dataclasses.fields(case.family):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(case.family, field.name, None)
    assert type(case.family).__name__ in repr(case.family)


@check
def initial_rho_fits_the_weights(case: Case) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        weights = torch.randn(4, 3, dtype=dtype).requires_grad_()
        rho = case.family.initial(weights, generator())
        assert (rho.shape, rho.dtype) == (weights.shape, dtype)
        assert not rho.requires_grad
        spread = case.family.spread(rho)
        assert torch.isfinite(spread).all()
        assert (spread > 0).all()


@check
def initial_rho_is_reproducible(case: Case) -> None:
    weights = torch.randn(6)
    first, again = (case.family.initial(weights, generator(3)) for _ in range(2))
    assert torch.equal(first, again)


@check
def spread_is_positive_finite_and_increasing(case: Case) -> None:
    for dtype, low in ((torch.float32, -80.0), (torch.float64, -600.0)):
        rho = torch.linspace(low, 80.0, 400, dtype=dtype)
        spread = case.family.spread(rho)
        assert (spread > 0).all()
        assert torch.isfinite(spread).all()
        assert (spread.diff() > 0).all()


@check
def spread_has_the_right_gradient(case: Case) -> None:
    rho = torch.tensor([*case.rho, -12.0, 12.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(case.family.spread, (rho,))


@check
def noise_has_the_shape_and_dtype_asked_for(case: Case) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        like = torch.zeros(2, 3, dtype=dtype, requires_grad=True)
        single, several = case.family.noise(like, None, None), case.family.noise(like, 7, None)
        assert (single.shape, single.dtype, several.shape, several.dtype) == ((2, 3), dtype, (7, 2, 3), dtype)
        assert not single.requires_grad
        assert not several.requires_grad


@check
def noise_is_reproducible_from_a_generator_alone(case: Case) -> None:
    like = torch.zeros(5)
    before = torch.get_rng_state()
    first, again, other = (case.family.noise(like, 3, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(9)
    first = case.family.noise(like, 3, None)
    torch.manual_seed(9)
    assert torch.equal(first, case.family.noise(like, 3, None))
    assert not torch.equal(first, case.family.noise(like, 3, None))


@check
def noise_is_symmetric_if_it_says_so(case: Case) -> None:
    noise = case.family.noise(torch.zeros(5, dtype=torch.float64), DRAWS, generator())
    if case.family.symmetric:
        for odd in (torch.sign, torch.tanh, *([] if not case.has_variance else [torch.clone, lambda x: x.pow(3)])):
            mean_within_standard_errors(odd(noise), 0.0)


@check
def coordinates_are_uncorrelated(case: Case) -> None:
    noise = case.family.noise(torch.zeros(4, dtype=torch.float64), DRAWS, generator())
    noise = noise if case.has_variance else noise.atan()
    centred = noise - noise.mean(0)
    for i in range(4):
        for j in range(i):
            mean_within_standard_errors(centred[:, i] * centred[:, j], 0.0)


@check
def moments_agree_with_the_distribution(case: Case) -> None:
    """Drawn weights, `variance` and `distribution` are three statements of one law."""
    spread, mean = case.spread(), torch.linspace(-2, 2, 5, dtype=torch.float64)
    law = case.family.distribution(mean, spread)
    if not case.has_variance:
        with pytest.raises(
            InputError, match='has no variance, so no moments can be taken of it; use propagate="sample"'
        ):
            case.family.variance(spread)
        return
    torch.testing.assert_close(law.variance, case.family.variance(spread, mean), rtol=1e-12, atol=0)
    drawn = case.family.perturbation(spread, case.family.noise(spread, DRAWS, generator()), mean)
    moments_within_standard_errors(mean + drawn, law.mean, law.variance)


@check
def draws_follow_the_distribution(case: Case) -> None:
    """Kolmogorov and Smirnov, coordinate by coordinate: a wrong law at 40,000 draws has p < 1e-6."""
    weight = case.weight(None)
    noise = weight.noise(generator(), DRAWS)
    if case.noise is None:
        return
    form = case.family.form(weight.mean, weight.spread, part=False)
    drawn = weight.sample(noise)
    base = drawn if form.sign is None else (drawn * form.sign).log()
    for column in ((base - form.location) / form.scale).T:
        assert stats.kstest(column.numpy(), case.noise.cdf).pvalue > 1e-4


@check
def the_density_of_the_noise_is_the_textbook_one(case: Case) -> None:
    if case.noise is None:
        return
    noise = case.family.noise(torch.zeros(500, dtype=torch.float64), None, generator())
    expected = torch.from_numpy(case.noise.logpdf(noise.numpy()))
    torch.testing.assert_close(case.family.log_noise(noise), expected, rtol=1e-9, atol=1e-9)


@check
def expectations_of_the_noise_agree_with_quadrature(case: Case) -> None:
    if case.noise is None:
        return
    terms = [power(k) for k in (1, 2, 3, 4)]
    if case.family.positive and not case.family.relative:
        terms += [log(1), log(2), power(0.5), *([power(-1)] if case.family.expected(power(-1), 1) < 99 else [])]
    if case.has_variance:
        for term in terms:
            expected = expectation(case.noise, term)
            assert case.family.expected(term, 1) == pytest.approx(expected, rel=1e-6, abs=1e-6), term
    entropy = -expectation(case.noise, case.noise.logpdf)
    assert case.family.noise_entropy(1) == pytest.approx(entropy, rel=1e-6)
    if not case.family.joint:
        assert case.family.noise_entropy(7) == pytest.approx(7 * entropy, rel=1e-6)


@check
def the_law_is_that_of_the_noise(case: Case) -> None:
    """log q(w) = log f(ξ) − log|dw/dξ|, the derivative by autograd."""
    weight = case.weight(None)
    noise = weight.noise(generator(), 50).requires_grad_()
    drawn = weight.sample(noise)
    (slope,) = torch.autograd.grad(drawn.sum(), noise)
    change, log_noise = slope.abs().log(), case.family.log_noise(noise.detach())
    result = weight.distribution().log_prob(drawn.detach())
    expected = log_noise - (change.flatten(1).sum(1) if case.family.joint else change)
    torch.testing.assert_close(result, expected, rtol=1e-7, atol=1e-7)


@check
def density_and_entropy_agree(case: Case) -> None:
    weight = case.weight(None)
    law = weight.distribution()
    log_density = law.log_prob(weight.sample(weight.noise(generator(), DRAWS)))
    mean_within_standard_errors(log_density, -law.entropy())


@check
def variance_is_never_negative(case: Case) -> None:
    if case.has_variance:
        spread = case.family.spread(torch.linspace(-50, 50, 200))
        assert (case.family.variance(spread, torch.ones_like(spread)) >= 0).all()


@check
def sample_touches_the_random_coordinates_alone(case: Case) -> None:
    weight = case.weight(INDEX)
    noise = weight.noise(generator())
    difference = (weight.sample(noise) - weight.mean).flatten()
    expected = torch.zeros(12, dtype=torch.float64)
    expected[INDEX] = case.family.perturbation(weight.spread, noise, weight.random_mean)
    torch.testing.assert_close(difference, expected, rtol=1e-12, atol=1e-14)
    outside = [i for i in range(12) if i not in INDEX]
    assert torch.equal(weight.sample(noise).flatten()[outside], weight.mean.flatten()[outside])
    whole = case.weight(None)
    noise = whole.noise(generator())
    torch.testing.assert_close(
        whole.sample(noise), whole.mean + case.family.perturbation(whole.spread, noise, whole.mean), rtol=1e-12, atol=0
    )


@check
def sample_is_mean_and_perturbation(case: Case) -> None:
    spread, mean = case.spread(), torch.linspace(-2, 2, 5, dtype=torch.float64)
    noise = case.family.noise(spread, 3, generator())
    expected = mean + case.family.perturbation(spread, noise, mean)
    torch.testing.assert_close(case.family.sample(mean, spread, noise), expected, rtol=1e-13, atol=1e-13)
    out = torch.full_like(expected, torch.nan)
    assert case.family.sample(mean, spread, noise, out=out) is out
    torch.testing.assert_close(out, expected, rtol=1e-13, atol=1e-13)


@check
def samples_can_be_written_into_a_copy_of_the_mean(case: Case) -> None:
    for index in (None, INDEX):
        weight = case.weight(index)
        buffer = weight.mean.clone()
        for seed in (0, 1):  # the second draw must leave nothing of the first
            noise = weight.noise(generator(seed))
            weight.sample_into(buffer, noise)
            torch.testing.assert_close(buffer, weight.sample(noise), rtol=1e-13, atol=1e-13)


@check
def stacked_samples_are_single_ones(case: Case) -> None:
    for index in (None, INDEX):
        weight = case.weight(index)
        noise = weight.noise(generator(), 6)
        stacked = weight.sample(noise)
        assert stacked.shape == (6, *weight.mean.shape)
        assert torch.equal(stacked, torch.stack([weight.sample(row) for row in noise]))
        one = weight.sample(weight.noise(generator(), 1))
        assert one.shape == (1, *weight.mean.shape)


@check
def offset_and_variance_are_dense(case: Case) -> None:
    for index in (None, INDEX):
        weight = case.weight(index)
        noise = weight.noise(generator())
        torch.testing.assert_close(weight.mean + weight.offset(noise), weight.sample(noise), rtol=1e-12, atol=1e-14)
        if case.has_variance:
            variance = torch.zeros_like(weight.mean).flatten()
            places = list(range(5)) if index is None else index
            variance[places] = case.family.variance(weight.spread, weight.random_mean)
            assert torch.equal(weight.variance(), variance.view(weight.mean.shape))
        assert torch.equal(weight.random_mean, weight.mean if index is None else weight.mean.flatten()[index])


@check
def gradients_with_respect_to_mean_and_rho(case: Case) -> None:
    for index in (None, INDEX):
        start = case.weight(index)
        mean = start.mean.clone().requires_grad_()
        rho = torch.tensor(case.rho, dtype=torch.float64, requires_grad=True)
        for samples in (None, 3):
            noise = start.noise(generator(), samples)

            def sample(mean: Tensor, rho: Tensor, noise: Tensor = noise, start: RandomWeight = start) -> Tensor:
                return RandomWeight("w", mean, start.index, case.family.spread(rho), case.family).sample(noise)

            assert torch.autograd.gradcheck(sample, (mean, rho))
        noise = start.noise(generator())
        for dense in ("offset", "variance") if case.has_variance else ("offset",):

            def by_rho(rho: Tensor, start: RandomWeight = start, noise: Tensor = noise, dense: str = dense) -> Tensor:
                weight = RandomWeight("w", start.mean, start.index, case.family.spread(rho), case.family)
                return weight.offset(noise) if dense == "offset" else weight.variance()

            assert torch.autograd.gradcheck(by_rho, (rho,))


@check
def a_bayesian_model_draws_and_learns_with_it(case: Case) -> None:
    model = torch.nn.Linear(3, 2).double()
    others = {"prior": HorseshoeLaw(0.0, 1.0), "kl": MonteCarlo(3)}  # a Horseshoe is infinitely far from a Normal
    bnn = Bayesian(model, posterior=case.family, **({"kl": Exact()} if case.has_variance else others))
    x = torch.randn(4, 3, dtype=torch.float64)
    assert torch.equal(bnn(x, generator=generator(1)), bnn(x, generator=generator(1)))
    assert not torch.equal(bnn(x, generator=generator(1)), bnn(x, generator=generator(2)))
    (bnn(x, generator=generator()).square().sum() + bnn.kl(generator=generator())).backward()
    for parameter in bnn.parameters():
        assert torch.isfinite(parameter.grad).all()
        assert parameter.grad.any()
