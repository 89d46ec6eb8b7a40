import math

import pytest
import torch
from scipy import stats
from torch import nn
from torch.distributions import Normal as TorchNormal

from leanbayes.bayesian import Bayesian
from leanbayes.kl import Exact, MonteCarlo
from leanbayes.kl.statistics import accumulated
from leanbayes.posteriors import Normal, Radial, RandomWeight, radial
from leanbayes.posteriors.terms import log, power
from leanbayes.subspace import top_k
from tests.oracles import mean_within_standard_errors


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class TestNoise:
    def test_radius_and_direction(self):
        """A half-Normal radius, and a direction of which every projection has the law of a uniform one."""
        noise = Radial().noise(torch.zeros(3, 2, dtype=torch.float64), 20_000, generator()).flatten(1)
        radius = noise.norm(dim=1)
        assert stats.kstest(radius.numpy(), stats.halfnorm.cdf).pvalue > 1e-3
        direction = noise / radius[:, None]
        projection = direction @ torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0, 1.0], dtype=torch.float64)
        projection = projection / math.sqrt(15.25)
        assert stats.kstest((projection.numpy() + 1) / 2, stats.beta(2.5, 2.5).cdf).pvalue > 1e-3
        mean_within_standard_errors(radius * direction[:, 0], 0.0)

    def test_every_draw_and_every_tensor_has_its_own_radius(self):
        noise = Radial().noise(torch.zeros(4), 3, generator())
        assert len({round(r, 5) for r in noise.norm(dim=1).tolist()}) == 3
        bnn = Bayesian(nn.Linear(2, 3).double(), posterior=Radial())
        weights = bnn.weights()
        radii = [weight.noise(generator(i)).norm().item() for i, weight in enumerate(weights.values())]
        assert radii[0] != radii[1]

    def test_one_coordinate_is_normal(self):
        noise = Radial().noise(torch.zeros(1, dtype=torch.float64), 20_000, generator())
        assert stats.kstest(noise[:, 0].numpy(), "norm").pvalue > 1e-3
        torch.testing.assert_close(Radial().log_noise(noise), Normal().log_noise(noise)[:, 0])
        assert Radial().noise_entropy(1) == pytest.approx(Normal().noise_entropy(1), rel=1e-12)

    @pytest.mark.parametrize("count", [1, 2, 5, 40])
    def test_moments_and_entropy(self, count):
        noise = Radial().noise(torch.zeros(count, dtype=torch.float64), 20_000, generator())
        for k in (1, 2, 3, 4):
            mean_within_standard_errors(noise[:, 0] ** k, Radial().expected(power(k), count))
        mean_within_standard_errors(-Radial().log_noise(noise), Radial().noise_entropy(count))

    def test_the_density_integrates_to_one_in_the_plane(self):
        """Midpoints on a fine square; the density has a pole of 1/r at 0."""
        law = Radial().distribution(torch.tensor([0.2, 0.0]).double(), torch.tensor([0.5, 1.0]).double())
        axis = (torch.arange(1200, dtype=torch.float64) + 0.5) / 1200 * 14 - 7
        grid = torch.cartesian_prod(0.5 * axis + 0.2, axis)
        assert law.log_prob(grid).exp().sum().item() * (14 / 1200) ** 2 * 0.5 == pytest.approx(1, abs=5e-3)


class TestSampledStatistics:
    """Radii exactly, directions as for large n: against the means over real draws."""

    @pytest.mark.parametrize(
        ("samples", "runs"), [(1, 500), (30, 500), pytest.param(3, 20_000, marks=pytest.mark.slow)]
    )
    def test_second_order_moments(self, samples, runs):
        n, source, wanted = 300, generator(samples), {power(1), power(2)}
        like = torch.zeros(n, dtype=torch.float64)
        result = []
        for draw in (accumulated, lambda family, *rest: family.sampled(*rest)):
            means = [draw(Radial(), wanted, samples, like, source) for _ in range(runs)]
            first, second = (torch.stack([mean.terms[power(k)] for mean in means]) for k in (1, 2))
            density = torch.stack([mean.log_density for mean in means])
            total, a, b, c = second.sum(1), first[:, 0], second[:, 0], second[:, 1]
            values = [n * a**2, n * b, n**2 * b * b, n**2 * b * c, n**2 * a * a * b, total, total**2, density]
            result.append(torch.stack([*values, density * total, first[:, 1]]))
        exact, drawn = result
        error = ((exact.var(1) + drawn.var(1)) / runs).sqrt()
        off = (exact.mean(1) - drawn.mean(1)).abs() / error
        assert (off < 4.5).all(), off
        for row in (5, 7, 9):
            assert stats.ks_2samp(exact[row].numpy(), drawn[row].numpy()).pvalue > 1e-3
        # a weighted sum of squares is matched by a Gamma law in two moments: of one coordinate it is not the very law
        one = stats.ks_2samp(exact[1].numpy(), drawn[1].numpy())
        assert one.pvalue > 1e-3 or (samples == 3 and one.statistic < 0.035)

    def test_the_sum_of_squares_is_that_of_the_radii(self):
        result = Radial().sampled({power(2)}, 1, torch.zeros(500, dtype=torch.float64), generator())
        radius = result.terms[power(2)].sum().sqrt()
        n = 500
        sphere = math.log(2) + n / 2 * math.log(math.pi) - math.lgamma(n / 2)
        density = -0.5 * radius**2 + 0.5 * math.log(2 / math.pi) - (n - 1) * radius.log() - sphere
        assert result.log_density.item() == pytest.approx(density.item(), rel=1e-9)


class TestIntegratedStatistics:
    """Radii are drawn, and directions integrated out: the expectation of the means over real draws, given the radii."""

    @pytest.mark.parametrize("count", [1, 2, 7])
    def test_they_are_the_expectation_given_the_radii(self, count, monkeypatch):
        radii = torch.tensor([0.3, 1.1, 2.0], dtype=torch.float64)
        monkeypatch.setattr(radial, "_radii", lambda samples, like, generator: radii[:samples])
        wanted, like = {power(k) for k in (1, 2, 3, 4)}, torch.zeros(count, dtype=torch.float64)
        integrated = Radial().integrated(wanted, 3, like, None)
        directions = torch.randn(40_000, 3, count, generator=generator(), dtype=torch.float64)
        noise = radii[:, None] * directions / directions.norm(dim=2, keepdim=True)
        for k in (1, 2, 3, 4):
            assert integrated.terms[power(k)].shape == (count,)
            means = (noise**k).mean(1)
            error = means.std(0) / math.sqrt(len(means))
            assert ((integrated.terms[power(k)] - means.mean(0)).abs() <= 4 * error + 1e-12).all(), k
        torch.testing.assert_close(integrated.log_density, Radial().log_noise(noise[0]).mean())

    @pytest.mark.parametrize("samples", [1, 20])
    def test_the_divergence_and_its_gradient_are_unbiased_and_vary_less(self, samples):
        torch.manual_seed(0)
        mean, spread = torch.randn(6).double().requires_grad_(), (0.2 + torch.rand(6)).double().requires_grad_()
        one, prior, source = RandomWeight("w", mean, None, spread, Radial()), TorchNormal(0.3, 0.8), generator(1)

        def gradients(how: str, times: int) -> torch.Tensor:
            rows = []
            for _ in range(times):
                value = MonteCarlo(samples, statistics=how)(one, prior, source)
                rows.append(torch.cat([value.detach()[None], *torch.autograd.grad(value, (mean, spread))]))
            return torch.stack(rows)

        exact = Exact()(one, prior)
        truth = torch.cat([exact.detach()[None], *torch.autograd.grad(exact, (mean, spread))])
        integrated, accumulated_ = gradients("integrated", 3000), gradients("accumulated", 1000)
        error = integrated.std(0) / math.sqrt(3000)
        assert ((integrated.mean(0) - truth).abs() < 4 * error + 1e-9).all()
        assert (integrated.var(0)[1:] < 0.9 * accumulated_.var(0)[1:]).all()  # of every gradient

    def test_the_default_takes_a_time_that_does_not_grow_with_the_draws(self):
        """A million draws of 10⁵ weights are 10¹¹ numbers one by one."""
        many = RandomWeight("w", torch.zeros(100_000), None, torch.ones(100_000), Radial())
        result = MonteCarlo(10**6).estimate(many, TorchNormal(0.0, 1.0), generator())
        assert (result.method, result.statistics) == ("exact", "integrated")
        truth = Exact()(many, TorchNormal(0.0, 1.0)).item()
        assert abs(result.value - truth) < 5 * result.standard_error

    def test_terms_without_a_finite_mean_are_left_to_others(self):
        like = torch.zeros(3)
        for term in (log(), power(0.5), power(-1)):
            assert Radial().integrated({term}, 3, like, generator()) is None

    def test_memory_does_not_grow_with_the_draws(self, monkeypatch):
        """Several chunks of radii give the statistics of a single chunk."""
        like, wanted = torch.zeros(5, dtype=torch.float64), {power(2)}
        whole = Radial().integrated(wanted, 1024, like, generator())
        monkeypatch.setattr(radial, "_CHUNK", 256)  # torch draws numbers in blocks of 16, so these are the same
        parts = Radial().integrated(wanted, 1024, like, generator())
        torch.testing.assert_close(parts.terms[power(2)], whole.terms[power(2)])
        torch.testing.assert_close(parts.log_density, whole.log_density)


class TestLocal:
    """Each weight tensor and each draw has one radius; the code of Nazarovs et al. 2021 has one for the whole batch."""

    @staticmethod
    def draws(model, x, propagate, count=20_000, **options):
        bnn = Bayesian(model, posterior=Radial(init_scale=0.8), **options)
        if propagate == "local":
            with torch.no_grad():
                batch = x.expand(count, *x.shape[1:])
                return bnn.call(bnn.weights(), (batch,), {}, propagate="local", generator=generator(1))
        weights = {name: value.detach() for name, value in bnn.draw(count, generator=generator(2)).items()}
        one = torch.func.vmap(lambda w: torch.func.functional_call(model, w, (x,))[0])
        return one(weights).detach()

    @pytest.mark.parametrize("bias", [False, True])
    def test_linear_outputs_have_the_joint_law_of_one_weight_draw(self, bias):
        torch.manual_seed(0)
        model = nn.Linear(3, 2, bias=bias).double()
        x = torch.tensor([[1.0, -0.5, 2.0]], dtype=torch.float64)
        local, sample = (self.draws(model, x, how) - model(x).detach() for how in ("local", "sample"))
        functions = [*local.unbind(1)], [*sample.unbind(1)]
        for made, columns in zip(functions, (local, sample), strict=True):
            made += [columns.norm(dim=1), columns.sum(1), columns.prod(1), columns.abs().max(1).values]
        for a, b in zip(*functions, strict=True):
            assert stats.ks_2samp(a.numpy(), b.numpy()).pvalue > 1e-3
        wrong = Bayesian(model, posterior=Normal(0.8 / math.sqrt(6)))
        with torch.no_grad():
            normal = wrong.call(wrong.weights(), (x.expand(20_000, 3),), {}, propagate="local", generator=generator(3))
        assert stats.ks_2samp((normal - model(x)).norm(dim=1).detach().numpy(), functions[1][2].numpy()).pvalue < 1e-6

    def test_examples_do_not_share_a_radius(self):
        model = nn.Linear(30, 1, bias=False).double()
        x = torch.ones(1, 30, dtype=torch.float64)
        sizes = (self.draws(model, x, "local") - model(x).detach()).abs().view(2, -1)
        assert abs(torch.corrcoef(sizes)[0, 1].item()) < 5 / math.sqrt(10_000)

    def test_the_pixels_of_an_example_do(self):
        """As they do when one weight draw makes them all: the mean of products of squares is the same."""
        torch.manual_seed(0)
        model = nn.Conv2d(2, 3, 3, bias=False).double()
        x = torch.randn(1, 2, 7, 7, dtype=torch.float64)
        local, sample = (self.draws(model, x, how) - model(x).detach() for how in ("local", "sample"))
        for place in ((0, 0, 0), (2, 4, 1)):
            a, b = local[:, *place], sample[:, *place]
            assert stats.ks_2samp(a.numpy(), b.numpy()).pvalue > 1e-3
        products = [(d[:, 0, 0, 0].square() * d[:, 1, 4, 4].square()) for d in (local, sample)]
        error = math.sqrt(sum(p.var().item() / len(p) for p in products))
        assert abs(products[0].mean() - products[1].mean()).item() < 4 * error
        independent = local[:, 0, 0, 0].square().mean() * local[:, 1, 4, 4].square().mean()
        assert (products[0].mean() - independent).item() > 4 * error

    def test_few_random_weights(self):
        """Outputs without a random weight have no noise, and the radius is that of the random ones."""
        model = nn.Linear(4, 3, bias=False).double()
        scores = {"weight": torch.zeros(3, 4)}
        scores["weight"][0, :2] = 1
        x = torch.ones(1, 4, dtype=torch.float64)
        options = {"subspace": top_k(scores, k=2)}
        local, sample = (self.draws(model, x, how, **options) - model(x).detach() for how in ("local", "sample"))
        assert not local[:, 1:].any()
        assert stats.ks_2samp(local[:, 0].numpy(), sample[:, 0].numpy()).pvalue > 1e-3

    def test_one_random_weight_and_shapes(self):
        model = nn.Linear(4, 3).double()
        bnn = Bayesian(
            model,
            subspace=top_k({"weight": torch.eye(3, 4), "bias": torch.zeros(3)}, k=1),
            posterior=Radial(),
            propagate="local",
        )
        assert bnn(torch.ones(4, dtype=torch.float64)).shape == (3,)
        assert bnn(torch.ones(2, 5, 4, dtype=torch.float64)).shape == (2, 5, 3)
        whole = Bayesian(nn.Conv2d(2, 3, 3), posterior=Radial(), propagate="local")
        assert whole(torch.ones(2, 5, 5)).shape == (3, 3, 3)
        half = Bayesian(nn.Linear(4, 3).to(torch.bfloat16), posterior=Radial(), propagate="local")
        assert half(torch.ones(2, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16
        tokens = Bayesian(nn.Embedding(5, 4), posterior=Radial(), propagate="local")
        assert tokens(torch.tensor([[0, 1], [1, 1]])).shape == (2, 2, 4)

    def test_gradients(self):
        bnn = Bayesian(nn.Linear(4, 3).double(), posterior=Radial(), propagate="local")
        bnn(torch.randn(5, 4, dtype=torch.float64)).square().sum().backward()
        for parameter in bnn.parameters():
            assert parameter.grad.isfinite().all()
            assert parameter.grad.any()


def test_a_radial_weight_of_some_coordinates():
    weight = RandomWeight("w", torch.zeros(3, 4), torch.tensor([1, 5, 6]), torch.ones(3), Radial())
    drawn = weight.sample(weight.noise(generator(), 5000)).flatten(1)
    mean_within_standard_errors(drawn.square().sum(1), 1.0)
    assert weight.variance().sum().item() == pytest.approx(1.0)


@pytest.mark.parametrize("size", [1, 3])
def test_numbers_that_are_exactly_zero_leave_densities_finite(size, monkeypatch):
    """Of float32 Normal numbers some are 0: a radius of 0 has an infinite density, and 0/0 no direction."""

    def zeros(shape, like, generator):
        return torch.zeros(shape, dtype=like.dtype)

    with monkeypatch.context() as patch:
        patch.setattr(radial, "standard_normal", zeros)
        noise = Radial().noise(torch.empty(size), 4, None)
        statistics = Radial().sampled({power(1), power(2)}, 4, torch.empty(size), None)
    assert noise.isfinite().all()
    assert (torch.linalg.vector_norm(noise, dim=1) > 0).all()
    assert Radial().log_noise(noise).isfinite().all()
    assert all(value.isfinite().all() for value in statistics.terms.values())
    assert statistics.log_density.isfinite()
