import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import Tensor, distributions, nn
from torch.distributions import (
    Beta,
    ContinuousBernoulli,
    Exponential,
    Gamma,
    Gumbel,
    Laplace,
    Pareto,
    StudentT,
    Uniform,
)
from torch.distributions import Normal as TorchNormal

from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError, NoClosedForm
from leanbayes.kl import Exact, MonteCarlo
from leanbayes.posteriors import Normal, RandomWeight
from leanbayes.priors import CentredPrior
from leanbayes.subspace import layers, random_k
from tests.oracles import normal_kl

MEANS, SCALES = [-2.0, -0.1, 0.0, 0.7, 3.0], [0.05, 0.3, 1.0, 1.7, 0.01]


def weight_of(mean: Tensor, scale: Tensor, index: Tensor | None = None) -> RandomWeight:
    return RandomWeight("w", mean, index, scale, Normal())


def weight(dtype: torch.dtype = torch.float64) -> RandomWeight:
    return weight_of(torch.tensor(MEANS, dtype=dtype), torch.tensor(SCALES, dtype=dtype))


def quadrature(mean: float, scale: float, log_prior: object) -> float:
    """∫ q (log q − log p) over ±12σ, in pieces so that no kink or peak is missed."""
    q = stats.norm(mean, scale)
    edges = sorted({mean + scale * z for z in (-12, -4, -1, 0, 1, 4, 12)} | {0.0, 0.25})
    edges = [e for e in edges if abs(e - mean) <= 12.001 * scale]

    def integrand(x: float) -> float:
        return q.pdf(x) * (q.logpdf(x) - log_prior(x))

    return sum(integrate.quad(integrand, a, b, epsabs=1e-13, epsrel=1e-12)[0] for a, b in pairwise(edges))


class TestNormalPrior:
    @pytest.mark.parametrize(("m", "s"), [(0.0, 1.0), (0.5, 0.2), (-3.0, 10.0)])
    def test_against_the_formula_and_quadrature(self, m, s):
        q, prior = weight(), TorchNormal(*torch.tensor([m, s], dtype=torch.float64))
        result = Exact()(q, prior).item()
        assert result == pytest.approx(normal_kl(q.mean, q.spread, m, s).item(), rel=1e-13)
        expected = sum(
            quadrature(mean, scale, stats.norm(m, s).logpdf) for mean, scale in zip(MEANS, SCALES, strict=True)
        )
        assert result == pytest.approx(expected, rel=1e-9)

    def test_a_float32_prior_does_not_lower_float64_weights(self):
        q, prior = weight(), TorchNormal(0.5, 0.25)  # both exact in float32
        assert prior.loc.dtype == torch.float32
        result = Exact()(q, prior)
        assert result.dtype == torch.float64
        assert result.item() == pytest.approx(normal_kl(q.mean, q.spread, 0.5, 0.25).item(), rel=1e-13)

    def test_a_centre_for_every_coordinate(self):
        q, centre = weight(), torch.linspace(-1, 1, 5, dtype=torch.float64)
        result = Exact()(q, TorchNormal(centre, torch.tensor(0.4, dtype=torch.float64)))
        assert result.item() == pytest.approx(normal_kl(q.mean, q.spread, centre, 0.4).item(), rel=1e-12)

    def test_a_scale_for_every_coordinate(self):
        q, scale = weight(), torch.linspace(0.1, 2, 5, dtype=torch.float64)
        result = Exact()(q, TorchNormal(torch.zeros(5, dtype=torch.float64), scale))
        assert result.item() == pytest.approx(normal_kl(q.mean, q.spread, 0.0, scale).item(), rel=1e-12)

    def test_gradients(self):
        mean = torch.tensor(MEANS, dtype=torch.float64, requires_grad=True)
        scale = torch.tensor(SCALES, dtype=torch.float64, requires_grad=True)
        prior = TorchNormal(*torch.tensor([0.5, 0.8], dtype=torch.float64))
        Exact()(weight_of(mean, scale), prior).backward()
        torch.testing.assert_close(mean.grad, (mean.detach() - 0.5) / 0.8**2, rtol=1e-12, atol=0)
        torch.testing.assert_close(scale.grad, scale.detach() / 0.8**2 - 1 / scale.detach(), rtol=1e-12, atol=1e-12)
        assert torch.autograd.gradcheck(lambda m, s: Exact()(weight_of(m, s), prior), (mean, scale))

    @settings(max_examples=60, deadline=None)
    @given(
        values=st.lists(st.tuples(st.floats(-5, 5), st.floats(1e-4, 5)), min_size=1, max_size=8),
        m=st.floats(-3, 3),
        s=st.floats(0.01, 10),
    )
    def test_never_negative_and_zero_only_for_the_prior_itself(self, values, m, s):
        mean, scale = torch.tensor(values, dtype=torch.float64).T
        prior = TorchNormal(torch.tensor(m, dtype=torch.float64), torch.tensor(s, dtype=torch.float64))
        expected = normal_kl(mean, scale, m, s).item()
        assert Exact()(weight_of(mean, scale), prior).item() == pytest.approx(expected, rel=1e-9, abs=1e-9)
        same = weight_of(torch.full((4,), m, dtype=torch.float64), torch.full((4,), s, dtype=torch.float64))
        assert Exact()(same, prior).item() == pytest.approx(0, abs=1e-9)

    def test_it_is_a_sum_not_a_mean(self):
        q = weight()
        doubled = weight_of(q.mean.repeat(2), q.spread.repeat(2))
        prior = TorchNormal(0.0, 1.0)
        assert Exact()(doubled, prior).item() == pytest.approx(2 * Exact()(q, prior).item(), rel=1e-12)
        matrix = weight_of(q.mean.expand(3, 5), q.spread.expand(3, 5))
        assert Exact()(matrix, prior).item() == pytest.approx(3 * Exact()(q, prior).item(), rel=1e-12)
        assert Exact()(matrix, prior).shape == ()

    def test_a_million_weights_in_float32(self):
        generator = torch.Generator().manual_seed(0)
        mean = torch.randn(1_000_000, generator=generator) * 0.05
        scale = torch.rand(1_000_000, generator=generator) * 0.05 + 1e-4
        result = Exact()(weight_of(mean, scale), TorchNormal(0.0, 0.1)).item()
        assert result == pytest.approx(normal_kl(mean, scale, 0.0, torch.tensor(0.1)).item(), rel=2e-5)


class TestOtherPriors:
    @pytest.mark.parametrize(
        "prior", [Laplace(0.0, 1.0), Laplace(0.25, 0.5), Gumbel(0.0, 1.5), Gumbel(0.25, 2.0)], ids=str
    )
    def test_against_quadrature_and_torch(self, prior):
        law = {Laplace: stats.laplace, Gumbel: stats.gumbel_r}[type(prior)]
        log_prior = law(prior.loc.item(), prior.scale.item()).logpdf
        result = Exact()(weight(), prior).item()
        expected = sum(quadrature(mean, scale, log_prior) for mean, scale in zip(MEANS, SCALES, strict=True))
        assert result == pytest.approx(expected, rel=1e-7)
        by_hand = distributions.kl_divergence(TorchNormal(weight().mean, weight().spread), prior).sum().item()
        assert result == pytest.approx(by_hand, rel=1e-12)

    @pytest.mark.parametrize(
        "prior",
        [StudentT(3.0), distributions.Cauchy(0.0, 1.0), distributions.HalfNormal(1.0)],
        ids=lambda prior: type(prior).__name__,
    )
    def test_a_pair_without_a_closed_form_names_both_the_tensor_and_monte_carlo(self, prior):
        name = type(prior).__name__
        match = rf"no exact KL is known for a Normal posterior and a {name} prior \(0\.weight\).*MonteCarlo\(1000\)"
        with pytest.raises(NoClosedForm, match=match):
            Bayesian(nn.Sequential(nn.Linear(2, 1)), prior=prior)
        with pytest.raises(NotImplementedError):
            Bayesian(nn.Sequential(nn.Linear(2, 1)), prior=prior)

    @pytest.mark.parametrize(
        "prior",
        [
            Uniform(-9.0, 9.0),
            Exponential(1.0),
            Gamma(1.0, 1.0),
            Pareto(1.0, 1.0),
            Beta(1.0, 1.0),
            ContinuousBernoulli(0.5),
        ],
        ids=lambda p: type(p).__name__,
    )
    def test_an_infinite_divergence_is_refused_when_the_model_is_made(self, prior):
        with pytest.raises(
            InputError, match=r"KL\(q‖p\) of 'weight' is inf for the prior .*must give density to every"
        ):
            Bayesian(nn.Linear(2, 1), prior=prior)

    def test_by_monte_carlo_too(self):
        with pytest.raises(InputError, match="must give density to every"):
            Bayesian(nn.Linear(20, 20), prior=distributions.HalfNormal(1.0), kl=MonteCarlo(10))

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_weights_that_are_not_finite_are_refused(self, bad):
        model = nn.Linear(2, 1)
        with torch.no_grad():
            model.bias[0] = bad
        with pytest.raises(InputError, match=r"of 'bias' is (nan|inf).*the model's weights must be finite"):
            Bayesian(model)


class TestWhatCounts:
    def test_random_coordinates_only(self):
        mean = torch.randn(3, 4, dtype=torch.float64)
        index, scale = torch.tensor([1, 6, 10], dtype=torch.int32), torch.tensor([0.1, 0.5, 2.0], dtype=torch.float64)
        for prior, log in ((TorchNormal(0.0, 1.0), None), (Laplace(0.0, 1.0), stats.laplace(0, 1).logpdf)):
            result = Exact()(weight_of(mean, scale, index), prior).item()
            chosen = mean.flatten()[index.long()]
            if log is None:
                expected = normal_kl(chosen, scale, 0.0, 1.0).item()
            else:
                expected = sum(quadrature(m, s, log) for m, s in zip(chosen.tolist(), scale.tolist(), strict=True))
            assert result == pytest.approx(expected, rel=1e-7)

    def test_a_model_with_few_random_weights(self):
        model = nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 5)).double()
        bnn = Bayesian(model, subspace=random_k(k=13), posterior=Normal(0.2))
        expected = 0.0
        for name, parts in bnn.parts():
            mean = dict(model.named_parameters())[name].detach().flatten()
            mean = mean if parts.index is None else mean[parts.index.long()]
            expected += normal_kl(mean, torch.full_like(mean, 0.2), 0.0, 1.0).item()
        assert bnn.kl().item() == pytest.approx(expected, rel=1e-10)
        whole = Bayesian(model, subspace=layers("1"), posterior=Normal(0.2)).kl().item()
        expected = sum(normal_kl(p.detach(), torch.full_like(p, 0.2), 0.0, 1.0).item() for p in model[1].parameters())
        assert whole == pytest.approx(expected, rel=1e-10)

    def test_no_gradient_outside_the_random_coordinates(self):
        mean = torch.randn(3, 4, requires_grad=True)
        Exact()(weight_of(mean, torch.full((2,), 0.5), torch.tensor([1, 6])), TorchNormal(0.0, 1.0)).backward()
        assert mean.grad.flatten().nonzero().flatten().tolist() == [1, 6]


class TestHalfPrecision:
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("prior", [TorchNormal(0.0, 1.0), Laplace(0.0, 1.0)], ids=lambda p: type(p).__name__)
    def test_sums_in_float32(self, dtype, prior):
        """The sum is that of the rounded weights, to float32; a sum in bfloat16 would stall after 256 terms."""
        generator = torch.Generator().manual_seed(0)
        mean = torch.randn(20_000, generator=generator).to(dtype)
        scale = (torch.rand(20_000, generator=generator) * 0.1 + 0.01).to(dtype)
        result = Exact()(weight_of(mean, scale), prior)
        assert result.dtype == torch.float32
        expected = distributions.kl_divergence(TorchNormal(mean.double(), scale.double()), prior).sum()
        assert result.item() == pytest.approx(expected.item(), rel=1e-5)

    def test_a_whole_model(self):
        model = nn.Linear(200, 100).to(torch.bfloat16)
        for prior, centre, s in ((TorchNormal(0.0, 1.0), 0.0, 1.0), (CentredPrior(0.5), None, 0.5)):
            bnn = Bayesian(model, prior=prior)
            expected = 0.0
            for name, parts in bnn.parts():
                mean = dict(model.named_parameters())[name].detach()
                scale = bnn.posterior.spread(parts.rho.detach())
                expected += normal_kl(mean, scale, mean.double() if centre is None else centre, s).item()
            assert bnn.kl().dtype == torch.float32
            assert bnn.kl().item() == pytest.approx(expected, rel=1e-5)
            bnn.kl().backward()
            assert all(torch.isfinite(parts.rho.grad).all() for _, parts in bnn.parts())
