import itertools
import math

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, special, stats
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Laplace, MultivariateNormal
from torch.distributions import Normal as TorchNormal

from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError, SelectionError
from leanbayes.kl import Exact, MonteCarlo
from leanbayes.posteriors import Normal, RandomWeight
from leanbayes.priors import (
    LAWS,
    CentredPrior,
    ErrorLaw,
    FittedPrior,
    FixedPrior,
    HorseshoeLaw,
    InverseGaussianLaw,
    LogisticLaw,
    LogUniformLaw,
    RadialLaw,
    rayleigh,
    resolve_priors,
    wald,
)
from leanbayes.subspace import layers, top_k
from tests.oracles import normal_kl

NAMES = ["stem.weight", "stem.bias", "fc.weight", "fc.bias"]


def some_weight(index: list[int] | None = None, seed: int = 0) -> RandomWeight:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(3, 4, dtype=torch.float64, generator=generator) * 0.7
    size = mean.shape if index is None else (len(index),)
    scale = torch.rand(size, dtype=torch.float64, generator=generator) + 0.05
    return RandomWeight("w", mean, None if index is None else torch.tensor(index), scale, Normal())


class TestFixed:
    def test_one_law_for_all(self):
        law = Laplace(0.0, 2.0)
        prior = FixedPrior(law)
        assert prior.remember(torch.ones(2)) is None
        assert prior.distribution(some_weight(), None) is law

    @pytest.mark.parametrize(
        "law",
        [
            TorchNormal(torch.zeros(3), torch.ones(3)),
            TorchNormal(torch.zeros(1), 1.0),
            MultivariateNormal(torch.zeros(2), torch.eye(2)),
            Independent(TorchNormal(torch.zeros(2), 1.0), 1),
            Categorical(torch.ones(2, 3)),
        ],
        ids=lambda law: type(law).__name__,
    )
    def test_a_law_of_several_numbers_is_refused(self, law):
        for make in (
            FixedPrior,
            lambda law: resolve_priors(law, NAMES),
            lambda law: Bayesian(nn.Linear(2, 1), prior=law),
        ):
            with pytest.raises(InputError, match=r"distribution of one number, got .* batch shape \(.*scalars"):
                make(law)


class TestByGlob:
    def test_one_law_is_for_every_tensor(self):
        prior = TorchNormal(0.0, 3.0)
        found = resolve_priors(prior, NAMES)
        assert list(found) == NAMES
        assert all(p == FixedPrior(prior) for p in found.values())

    def test_the_first_match_wins(self):
        wide, narrow, fitted = TorchNormal(0.0, 10.0), TorchNormal(0.0, 0.1), FittedPrior()
        found = resolve_priors({"*.bias": wide, "fc.*": fitted, "*": narrow}, NAMES)
        assert found == {
            "stem.weight": FixedPrior(narrow),
            "stem.bias": FixedPrior(wide),
            "fc.weight": fitted,
            "fc.bias": FixedPrior(wide),
        }

    def test_a_pattern_without_a_match(self):
        with pytest.raises(SelectionError) as caught:
            resolve_priors({"head.*": FittedPrior(), "*": FittedPrior()}, NAMES)
        assert "'head.*' matched none of 4 random tensors" in str(caught.value)
        assert str(NAMES[:3]) in str(caught.value)

    def test_a_tensor_without_a_match(self):
        with pytest.raises(
            SelectionError, match=r"no prior for 'stem.weight' among the patterns \['fc.\*'\]; add '\*'"
        ):
            resolve_priors({"fc.*": FittedPrior()}, NAMES)

    def test_no_pattern_at_all(self):
        with pytest.raises(SelectionError, match=r"no prior for 'stem\.weight'"):
            resolve_priors({}, NAMES)

    @pytest.mark.parametrize("bad", [1.0, "normal", None, {"*": 3.0}, [TorchNormal(0.0, 1.0)]])
    def test_what_is_no_prior(self, bad):
        with pytest.raises(InputError, match="a prior is a torch distribution, a leanbayes Prior or a mapping"):
            resolve_priors(bad, NAMES)

    def test_globs_are_over_the_random_tensors(self):
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        with pytest.raises(SelectionError, match=r"'0.\*' matched none of 2 random tensors"):
            Bayesian(model, subspace=layers("1"), prior={"0.*": FittedPrior(), "*": FittedPrior()})

    def test_each_tensor_pays_for_its_own_prior(self):
        model = nn.Linear(3, 2).double()
        priors = {"weight": TorchNormal(0.5, 2.0), "bias": TorchNormal(0.0, 0.1)}
        bnn = Bayesian(model, prior=priors, posterior=Normal(0.3))
        scale = torch.tensor(0.3)
        expected = normal_kl(model.weight, scale.expand(2, 3), 0.5, 2.0) + normal_kl(
            model.bias, scale.expand(2), 0.0, 0.1
        )
        assert bnn.kl().item() == pytest.approx(expected.item(), rel=1e-6)


class TestFitted:
    @pytest.mark.parametrize("index", [None, [0, 5, 7, 11]])
    def test_it_minimises_the_divergence_over_its_scale(self, index):
        weight = some_weight(index)
        mean, scale = weight.random_mean, weight.spread

        def kl(log_s: float) -> float:
            return normal_kl(mean, scale, 0.0, math.exp(log_s)).item()

        best = optimize.minimize_scalar(kl, bounds=(-6, 6), method="bounded", options={"xatol": 1e-10})
        law = FittedPrior().distribution(weight, None)
        assert law.loc.item() == 0
        assert law.scale.shape == ()
        assert law.scale.item() == pytest.approx(math.exp(best.x), rel=1e-6)
        assert Exact()(weight, law).item() == pytest.approx(best.fun, rel=1e-12)

    @pytest.mark.parametrize("index", [None, [0, 5, 7, 11]])
    def test_the_gradient_is_that_of_the_minimum(self, index):
        """∇ min_s KL by finite differences of a numeric minimisation, against autograd with s held constant."""
        start = some_weight(index)
        mean, scale = start.mean.clone().requires_grad_(), start.spread.clone().requires_grad_()
        weight = RandomWeight("w", mean, start.index, scale, Normal())
        Exact()(weight, FittedPrior().distribution(weight, None)).backward()

        def minimum(flat: np.ndarray) -> float:
            m, s = (torch.from_numpy(part) for part in np.split(flat, [start.mean.numel()]))
            m = m if start.index is None else m[start.index]
            second = (m.flatten() ** 2 + s**2).sum().item()
            n, entropy = s.numel(), s.log().sum().item()

            def kl(log_s: float) -> float:
                return n * log_s + second / (2 * math.exp(2 * log_s)) - entropy - n / 2

            return optimize.minimize_scalar(kl, bounds=(-6, 6), method="bounded", options={"xatol": 1e-11}).fun

        point = np.concatenate([start.mean.flatten().numpy(), start.spread.flatten().numpy()])
        numeric = [(minimum(point + 1e-5 * unit) - minimum(point - 1e-5 * unit)) / 2e-5 for unit in np.eye(len(point))]
        analytic = torch.cat([mean.grad.flatten(), scale.grad.flatten()])
        np.testing.assert_allclose(analytic.numpy(), numeric, rtol=1e-5, atol=1e-7)
        assert np.abs(numeric).max() > 0.1

    def test_it_follows_the_weights(self):
        model = nn.Linear(3, 2).double()
        bnn = Bayesian(model, prior=FittedPrior(), posterior=Normal(0.1))
        before = bnn.kl().item()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(10)
        expected = 0.0
        for parameter in model.parameters():
            s = (parameter**2 + 0.01).mean().sqrt()
            expected += normal_kl(parameter, torch.full_like(parameter, 0.1), 0.0, s).item()
        assert bnn.kl().item() == pytest.approx(expected, rel=1e-10)
        assert bnn.kl().item() > before

    def test_no_gradient_runs_through_the_scale(self):
        weight = some_weight()
        weight.mean.requires_grad_()
        assert not FittedPrior().distribution(weight, None).scale.requires_grad


class TestCentred:
    def test_it_remembers_the_trained_weights(self):
        model = nn.Linear(4, 3).double()
        start = {name: p.detach().clone() for name, p in model.named_parameters()}
        bnn = Bayesian(model, prior=CentredPrior(0.2), posterior=Normal(0.05))

        def expected() -> Tensor:
            return sum(
                normal_kl(p.detach(), torch.full_like(p, 0.05), start[name], 0.2)
                for name, p in model.named_parameters()
            )

        at_start = bnn.kl().item()
        assert at_start == pytest.approx(expected().item(), rel=1e-10)
        assert at_start == pytest.approx(15 * (math.log(4) + 0.0625 / 2 - 0.5), rel=1e-10)
        with torch.no_grad():
            model.weight += 0.3
        assert bnn.kl().item() == pytest.approx(at_start + 12 * 0.3**2 / (2 * 0.2**2), rel=1e-10)
        assert bnn.kl().item() == pytest.approx(expected().item(), rel=1e-10)

    def test_the_gradient_is_zero_at_the_trained_weights_and_right_beside_them(self):
        """At the centre the distance is exactly 0, where the derivative of a norm is not defined."""
        model = nn.Linear(4, 3).double()
        bnn = Bayesian(model, prior=CentredPrior(0.2))
        bnn.kl().backward()
        assert torch.equal(model.weight.grad, torch.zeros(3, 4, dtype=torch.float64))
        model.zero_grad()
        with torch.no_grad():
            model.weight[1, 2] += 1e-9
        bnn.kl().backward()
        assert model.weight.grad[1, 2].item() == pytest.approx(1e-9 / 0.2**2, rel=1e-5)
        assert model.weight.grad.count_nonzero() == 1

    def test_only_the_random_coordinates_are_kept(self):
        model = nn.Linear(50, 2).double()
        scores = {name: torch.rand(p.shape) for name, p in model.named_parameters()}
        bnn = Bayesian(model, subspace=top_k(scores, k=5), prior=CentredPrior())
        kept = {name: parts.memory for name, parts in bnn.parts()}
        assert sum(memory.numel() for memory in kept.values()) == 5
        for name, parts in bnn.parts():
            whole = dict(model.named_parameters())[name].detach().flatten()
            assert torch.equal(kept[name], whole if parts.index is None else whole[parts.index])

    def test_the_memory_is_a_copy_and_travels_with_the_state(self):
        model = nn.Linear(2, 1)
        bnn = Bayesian(model, prior=CentredPrior())
        with torch.no_grad():
            model.weight.zero_()
        memory = {key: value for key, value in bnn.state_dict().items() if key.endswith("memory")}
        assert len(memory) == 2
        assert all(value.any() for value in memory.values())

    @pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
    def test_bad_scales(self, scale):
        with pytest.raises(InputError, match="CentredPrior needs a positive finite scale, got"):
            CentredPrior(scale)


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


class TestLawsThatTorchLacks:
    @pytest.mark.parametrize(
        ("law", "expected"),
        [
            (LogisticLaw(number(0.3), number(1.5)), stats.logistic(0.3, 1.5)),
            (ErrorLaw(number(0.3), number(1.5), number(1.2)), stats.gennorm(2 / 1.2, 0.3, 1.5 * 2**0.6)),
            (ErrorLaw(number(0.3), number(1.5), number(1.0)), stats.norm(0.3, 1.5)),
            (InverseGaussianLaw(number(1.7), number(2.5)), stats.invgauss(1.7 / 2.5, scale=2.5)),
            (wald(number(2.5)), stats.invgauss(1 / 2.5, scale=2.5)),
            (rayleigh(number(0.8)), stats.rayleigh(scale=0.8)),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_densities(self, law, expected):
        points = np.linspace(0.05, 9, 200)
        found = law.log_prob(torch.from_numpy(points))
        np.testing.assert_allclose(found.numpy(), expected.logpdf(points), rtol=1e-10, atol=1e-12)

    def test_the_horseshoe_is_a_mixture_of_normals(self):
        """∫ N(w; m, (sλ)²) C⁺(λ) dλ by quadrature in log λ."""
        law = HorseshoeLaw(number(0.3), number(0.7))
        t = np.linspace(-30, 30, 20_001)
        points = np.array([0.301, 0.5, -1.0, 4.0, 60.0])
        scales = 0.7 * np.exp(t)
        mixture = stats.norm.pdf(points[:, None], 0.3, scales) * stats.halfcauchy.pdf(np.exp(t)) * np.exp(t)
        expected = np.log(mixture.sum(1) * (t[1] - t[0]))
        np.testing.assert_allclose(law.log_prob(torch.from_numpy(points)).numpy(), expected, rtol=1e-8)

    def test_the_radial_one_is_of_a_whole_tensor(self):
        law, points = RadialLaw(number(0.5), number(2.0)), torch.randn(3, 2, dtype=torch.float64)
        z = (points - 0.5) / 2
        r, n = z.norm(), 6
        surface = 2 * math.pi ** (n / 2) / math.gamma(n / 2)
        expected = math.log(2) + stats.norm.logpdf(r) - (n - 1) * math.log(r) - math.log(surface) - n * math.log(2)
        assert law.log_prob(points).item() == pytest.approx(expected, rel=1e-10)
        one = RadialLaw(number(0.5), number(2.0)).log_prob(points[0, :1])
        torch.testing.assert_close(one, TorchNormal(number(0.5), number(2.0)).log_prob(points[0, 0]))

    @pytest.mark.parametrize("name", LAWS)
    def test_gradients_and_repr(self, name):
        law = LAWS[name](*([number(0.6), number(1.1), number(1.4)][: len(LAWS[name].arg_constraints)]))
        points = torch.tensor([0.4, 1.5, 3.0], dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(law.log_prob, (points,))
        assert torch.autograd.gradgradcheck(law.log_prob, (points,))
        assert name in repr(law)

    @pytest.mark.parametrize("name", LAWS)
    def test_bad_parameters(self, name):
        place = 0.6 if len(LAWS[name].arg_constraints) > 1 else math.nan
        with pytest.raises((ValueError, InputError)):
            LAWS[name](*([place, -1.0, 1.4][: len(LAWS[name].arg_constraints)]), validate_args=True)

    def test_in_a_model(self):
        for law in (LogisticLaw(0.0, 1.0), HorseshoeLaw(0.0, 1.0), RadialLaw(0.0, 1.0), ErrorLaw(0.0, 1.0, 1.5)):
            bnn = Bayesian(nn.Linear(3, 2), prior=law, kl=MonteCarlo(3))
            bnn.kl().backward()
            assert all(parameter.grad.isfinite().all() for parameter in bnn.parameters())


# ---------------------------------------------------------------- the log-uniform prior (Molchanov et al. 2017)


def log_uniform_kl(ratio: float) -> float:
    """KL(N(r, 1)‖1/|w|) less its value at r = 0: E log|ε + r| − E log|ε|, by quadrature around the pole."""
    density = stats.norm(ratio, 1).pdf
    low, high = ratio - 12, ratio + 12
    cuts = sorted({low, min(max(low, 0.0), high), high})
    total = sum(
        integrate.quad(lambda w: density(w) * math.log(abs(w)), a, b, limit=400, epsabs=1e-10)[0]
        for a, b in itertools.pairwise(cuts)
    )
    return total + 0.5 * (np.euler_gamma + math.log(2))


def series_kl(ratio: float) -> float:
    """The same by another way: log w² is that of a noncentral χ², a Poisson mixture of digammas."""
    terms = np.arange(4000)
    weights = stats.poisson(ratio**2 / 2).pmf(terms)
    return 0.5 * float((weights * special.digamma(0.5 + terms)).sum() + 2 * math.log(2) + np.euler_gamma)


def test_the_divergence_to_a_log_uniform_prior_is_within_a_hundredth() -> None:
    ratios = [0.0, 1e-4, 0.01, 0.1, 0.3, 0.5, 0.8, 1.0, 1.3, 1.7, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0, 30.0]
    truth = np.array([log_uniform_kl(ratio) for ratio in ratios])
    assert truth == pytest.approx([series_kl(ratio) for ratio in ratios], abs=1e-7)
    for scale, place in ((1.0, 0.0), (1e-3, 0.0), (50.0, 2.0)):
        mean = scale * torch.tensor(ratios, dtype=torch.float64) + place
        posterior = TorchNormal(mean, torch.full_like(mean, scale))
        found = torch.distributions.kl_divergence(posterior, LogUniformLaw(place))
        assert np.abs(found.numpy() - truth).max() < 0.01
        mirrored = torch.distributions.kl_divergence(TorchNormal(2 * place - mean, scale), LogUniformLaw(place))
        torch.testing.assert_close(mirrored, found)
    far = torch.distributions.kl_divergence(TorchNormal(1e4, 1.0), LogUniformLaw(0.0))
    assert float(far) == pytest.approx(math.log(1e4) + 0.5 * (np.euler_gamma + math.log(2)), abs=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_divergence_to_a_log_uniform_prior_has_finite_slopes(dtype: torch.dtype) -> None:
    """Exactly at zero, where every newcomer of a rewired network is, and at extreme scales."""
    mean = torch.tensor([0.0, 0.0, 1e-12, 1e-3, 5.0, -5.0], dtype=dtype, requires_grad=True)
    scale = torch.tensor([1e-4, 10.0, 1.0, 1e-4, 1e-6, 1e3], dtype=dtype, requires_grad=True)
    found = torch.distributions.kl_divergence(TorchNormal(mean, scale), LogUniformLaw(0.0))
    slopes = torch.autograd.grad(found.sum(), (mean, scale))
    assert found.isfinite().all()
    assert (found >= 0).all()
    assert all(slope.isfinite().all() for slope in slopes)
    assert (slopes[0][:2] == 0).all()
    assert slopes[0][3] > 0
    assert slopes[0][5] <= 0
    assert (slopes[1] <= 1e-6).all()


def test_a_log_uniform_prior_in_a_model() -> None:
    bnn = Bayesian(nn.Linear(3, 2).double(), prior=LogUniformLaw(0.0))
    ratios = [ratio for w in bnn.weights().values() for ratio in (w.mean / w.spread).abs().flatten().tolist()]
    assert bnn.kl().item() == pytest.approx(sum(map(series_kl, ratios)), abs=0.01 * len(ratios))
    with torch.no_grad():
        bnn.model.weight.zero_()
    bnn.kl().backward()
    assert all(p.grad.isfinite().all() for p in bnn.parameters())
    assert float(LogUniformLaw(1.0).log_prob(torch.tensor(3.0))) == pytest.approx(-math.log(2))
