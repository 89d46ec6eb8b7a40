import math

import pytest
import torch
from scipy import integrate, stats
from torch import nn
from torch.distributions import Cauchy, Laplace, StudentT
from torch.distributions import Normal as TorchNormal

from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError
from leanbayes.kl import Exact, MonteCarlo
from leanbayes.posteriors import Normal, RandomWeight
from tests.oracles import mean_within_standard_errors

MEANS, SCALES = [-2.0, 0.0, 0.7], [0.3, 1.0, 0.05]
COPIES = 4000


def weight() -> RandomWeight:
    mean, scale = (torch.tensor(values, dtype=torch.float64).requires_grad_() for values in (MEANS, SCALES))
    return RandomWeight("w", mean, None, scale, Normal())


def repeated(index: bool) -> RandomWeight:
    """The same three coordinates over and over: the whole of a tensor, or every other number of one."""
    mean, scale = (torch.tensor(values, dtype=torch.float64).repeat(COPIES) for values in (MEANS, SCALES))
    places = None
    if index:
        places = torch.arange(1, 2 * len(mean), 2, dtype=torch.int32)
        mean = torch.stack([torch.full_like(mean, 9.0), mean], dim=1)
    return RandomWeight("w", mean.requires_grad_(), places, scale.requires_grad_(), Normal())


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("index", [False, True])
@pytest.mark.parametrize("prior", [TorchNormal(0.0, 1.0), TorchNormal(0.5, 0.3), Laplace(0.0, 1.0)], ids=str)
def test_value_and_gradient_are_unbiased(prior, index):
    one = weight()
    exact = Exact()(one, prior)
    by_mean, by_scale = torch.autograd.grad(exact, (one.mean, one.spread))
    copies = repeated(index)
    source = generator()
    values = torch.stack([MonteCarlo(1)(copies, prior, source).detach() / COPIES for _ in range(60)])
    mean_within_standard_errors(values, exact, errors=4)
    # Each coordinate's gradient depends on its own noise alone, so the copies are as good as so many runs.
    gradients = torch.autograd.grad(MonteCarlo(2)(copies, prior, source), (copies.mean, copies.spread))
    mean_gradient = gradients[0] if copies.index is None else gradients[0].flatten()[copies.index]
    mean_within_standard_errors(mean_gradient.view(COPIES, 3), by_mean, errors=4)
    mean_within_standard_errors(gradients[1].view(COPIES, 3), by_scale, errors=4)
    if copies.index is not None:
        assert not gradients[0][:, 0].any()


@pytest.mark.parametrize(
    ("prior", "law"), [(StudentT(3.0), stats.t(3)), (Cauchy(0.0, 2.0), stats.cauchy(0, 2))], ids=["StudentT", "Cauchy"]
)
def test_pairs_without_a_closed_form_against_quadrature(prior, law):
    expected = 0.0
    for m, s in zip(MEANS, SCALES, strict=True):
        q = stats.norm(m, s)
        expected += integrate.quad(
            lambda x, q=q: q.pdf(x) * (q.logpdf(x) - law.logpdf(x)), m - 12 * s, m + 12 * s, points=[m]
        )[0]
    source = generator()
    values = torch.stack([MonteCarlo(1)(repeated(False), prior, source).detach() / COPIES for _ in range(60)])
    mean_within_standard_errors(values, expected, errors=4)


def test_more_draws_mean_less_noise():
    """The variance falls as 1/M."""
    prior, source = Laplace(0.0, 1.0), generator()
    spread = {
        samples: torch.stack([MonteCarlo(samples)(weight(), prior, source).detach() for _ in range(200)]).var().item()
        for samples in (1, 9)
    }
    assert spread[1] / spread[9] == pytest.approx(9, rel=0.5)  # each variance is known to about 10 %


def test_it_is_zero_for_the_prior_itself_at_every_draw():
    q = RandomWeight("w", torch.zeros(4).double(), None, torch.ones(4).double(), Normal())
    assert MonteCarlo(3)(q, TorchNormal(0.0, 1.0)).item() == pytest.approx(0, abs=1e-12)


def test_it_is_a_sum_over_the_coordinates():
    q = weight()
    many = RandomWeight("w", q.mean.repeat(500), None, q.spread.repeat(500), Normal())
    result = MonteCarlo(20)(many, Laplace(0.0, 1.0), generator()).item()
    assert result == pytest.approx(500 * Exact()(q, Laplace(0.0, 1.0)).item(), rel=0.05)


def test_reproducible_and_the_global_state_is_left_alone():
    before = torch.get_rng_state()
    first, again, other = (MonteCarlo(3)(weight(), Laplace(0.0, 1.0), generator(seed)).item() for seed in (0, 0, 1))
    assert first == again != other
    assert torch.equal(before, torch.get_rng_state())


def test_in_a_model():
    model = nn.Linear(4, 3).double()
    bnn = Bayesian(model, prior=Laplace(0.0, 1.0), kl=MonteCarlo(5))
    exact = Bayesian(model, prior=Laplace(0.0, 1.0)).kl().item()
    source = generator()
    with torch.no_grad():
        values = torch.stack([bnn.kl(generator=source) for _ in range(300)])
    mean_within_standard_errors(values, exact, errors=4)
    assert bnn.kl(generator=generator()).item() == bnn.kl(generator=generator()).item()


def test_building_a_model_does_not_advance_the_random_state():
    model = nn.Linear(4, 3)
    before = torch.get_rng_state()
    Bayesian(model, prior=StudentT(3.0), kl=MonteCarlo(5))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_sums_in_float32(dtype):
    """In bfloat16 a running sum stops growing after 256 equal terms, and float16 overflows at 65,504."""
    mean = torch.randn(1000, generator=generator()).to(dtype)
    q = RandomWeight("w", mean, None, torch.full((1000,), 0.05, dtype=dtype), Normal())
    prior = TorchNormal(0.0, 1.0)
    result = MonteCarlo(400)(q, prior, generator())
    assert result.item() == pytest.approx(Exact()(q, prior).item(), rel=0.01)


@pytest.mark.parametrize("samples", [0, -3])
def test_at_least_one_sample(samples):
    with pytest.raises(InputError, match=f"at least one sample, got {samples}"):
        MonteCarlo(samples)


class TestEstimate:
    def test_value_and_standard_error(self):
        """Over many runs the errors are as large as they say."""
        result = [MonteCarlo(200).estimate(weight(), Laplace(0.0, 1.0), generator(seed)) for seed in range(60)]
        values = torch.tensor([estimate.value for estimate in result])
        claimed = torch.tensor([estimate.standard_error for estimate in result])
        assert values.std().item() == pytest.approx(claimed.mean().item(), rel=0.35)
        exact = Exact()(weight(), Laplace(0.0, 1.0)).item()
        assert abs(values.mean().item() - exact) < 4 * claimed.mean().item() / 60**0.5
        assert (result[0].samples, result[0].method, result[0].statistics) == (200, "streamed", "accumulated")
        assert str(result[0]).endswith("nats (200 draws, streamed)")

    def test_sampled_statistics(self):
        result = MonteCarlo(1000).estimate(weight(), TorchNormal(0.0, 1.0), generator())
        assert (result.method, result.statistics) == ("exact", "sampled")
        assert result.value == pytest.approx(
            Exact()(weight(), TorchNormal(0.0, 1.0)).item(), abs=4 * result.standard_error
        )

    def test_one_draw_has_no_standard_error(self):
        assert math.isnan(MonteCarlo(1).estimate(weight(), Laplace(0.0, 1.0)).standard_error)

    def test_groups_of_unequal_size(self):
        result = MonteCarlo(70).estimate(weight(), Laplace(0.0, 1.0), generator())
        assert result.samples == 70
        assert result.standard_error > 0


def test_a_prior_that_is_learned_gets_its_gradient():
    for prior, scale in ((TorchNormal, torch.tensor(1.5)), (Laplace, torch.tensor(1.5))):
        scale = scale.double().requires_grad_()
        estimator = MonteCarlo(7)
        value = estimator(weight(), prior(torch.zeros((), dtype=torch.float64), scale), generator())
        assert torch.autograd.grad(value, scale)[0].abs() > 0.01
    assert estimator.method(Normal(), Laplace(torch.zeros(()), scale)) == "direct"


def test_centred_and_fitted_priors():
    """A Normal prior with a centre for each coordinate."""
    one = weight()
    prior = TorchNormal(torch.tensor([-1.0, 0.5, 0.7], dtype=torch.float64), torch.tensor(0.4, dtype=torch.float64))
    results = []
    for estimator in (MonteCarlo(6, statistics="accumulated"), MonteCarlo(6, direct=True)):
        value = estimator(one, prior, generator())
        results.append((value, *torch.autograd.grad(value, (one.mean, one.spread))))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


def test_some_coordinates_of_a_tensor():
    prior = Laplace(torch.tensor(0.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))
    for law in (prior, TorchNormal(0.0, 1.0)):
        copies = repeated(index=True)
        value = MonteCarlo(2)(copies, law, generator())
        by_mean, by_scale = torch.autograd.grad(value, (copies.mean, copies.spread))
        assert not by_mean[:, 0].any()
        assert by_scale.isfinite().all()


def test_no_graph_without_gradients():
    with torch.no_grad():
        for prior in (TorchNormal(0.0, 1.0), Laplace(0.0, 1.0)):
            assert not MonteCarlo(3)(weight(), prior).requires_grad
    frozen = RandomWeight("w", torch.zeros(3), None, torch.ones(3), Normal())
    assert not MonteCarlo(3)(frozen, Laplace(0.0, 1.0)).requires_grad
