import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import nn
from torch.distributions import Laplace

import leanbayes as lb
from leanbayes.errors import InputError
from leanbayes.evaluation.cost import count_parameters
from leanbayes.posteriors import GaussianRho, Normal, RandomWeight, RelativeScale
from tests.oracles import mean_within_standard_errors


def test_noise_is_standard_normal():
    noise = Normal().noise(torch.zeros(3, dtype=torch.float64), 100_000, torch.Generator().manual_seed(0))
    for power, moment in ((1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0), (6, 15.0)):
        mean_within_standard_errors(noise**power, moment)
    assert stats.kstest(noise[:, 0].numpy(), "norm").pvalue > 1e-4


def test_spread_is_softplus():
    rho = torch.tensor([-40.0, -3.0, 0.0, 2.0, 15.0], dtype=torch.float64)
    expected = [math.log1p(math.exp(r)) for r in rho.tolist()]
    torch.testing.assert_close(Normal().spread(rho), torch.tensor(expected, dtype=torch.float64), rtol=1e-14, atol=0)


def test_the_law_is_the_textbook_one():
    mean, scale = torch.tensor([1.5, -2.0], dtype=torch.float64), torch.tensor([0.3, 4.0], dtype=torch.float64)
    law = Normal().distribution(mean, scale)
    points = torch.tensor([1.0, 3.0], dtype=torch.float64)
    expected = stats.norm.logpdf(points.numpy(), mean.numpy(), scale.numpy())
    torch.testing.assert_close(law.log_prob(points), torch.from_numpy(expected), rtol=1e-12, atol=0)
    assert Normal().variance(scale).tolist() == pytest.approx([0.09, 16.0], rel=1e-14)


@pytest.mark.parametrize("scale", [1e-8, 0.05, 1, 1.0, 1e3])
def test_a_constant_initial_scale(scale):
    posterior = Normal(init_scale=scale)
    result = posterior.spread(posterior.initial(torch.randn(3, 2, dtype=torch.float64), None))
    torch.testing.assert_close(result, torch.full((3, 2), float(scale), dtype=torch.float64), rtol=1e-13, atol=0)


def test_the_default_scale_is_small():
    assert Normal() == Normal(init_scale=0.05)
    assert Normal() != Normal(init_scale=0.1)


def test_the_other_ways_to_start():
    weights = torch.tensor([0.0, -2.0, 5.0], dtype=torch.float64)
    relative = Normal(RelativeScale(0.1, floor=1e-3))
    expected = torch.tensor([1e-3, 0.2, 0.5], dtype=torch.float64)
    torch.testing.assert_close(relative.spread(relative.initial(weights, None)), expected, rtol=1e-13, atol=0)
    gaussian = Normal(GaussianRho(-2.0, 0.5))
    rho = gaussian.initial(torch.zeros(20_000, dtype=torch.float64), torch.Generator().manual_seed(0))
    mean_within_standard_errors(rho, -2.0)
    mean_within_standard_errors((rho + 2).square(), 0.25)
    assert torch.equal(gaussian.spread(rho), F.softplus(rho))


@pytest.mark.parametrize("bad", [0, 0.0, -1.0, math.nan, math.inf, -math.inf, "0.05", None, (0.1,)])
def test_bad_initial_scales(bad):
    with pytest.raises(
        InputError, match="init_scale must be a positive finite number, a GaussianRho or a RelativeScale"
    ):
        Normal(init_scale=bad)


class TestRandomWeight:
    def test_a_scalar_parameter(self):
        weight = RandomWeight("w", torch.tensor(2.0), None, torch.tensor(0.5), Normal())
        assert weight.sample(torch.tensor(1.0)).item() == 2.5
        assert weight.sample(torch.tensor([1.0, -1.0])).tolist() == [2.5, 1.5]
        assert weight.variance().item() == 0.25

    @pytest.mark.parametrize("kind", [torch.int32, torch.int64])
    def test_positions_are_flat_in_row_order_whatever_the_memory_layout(self, kind):
        index = torch.tensor([1, 6], dtype=kind)
        mean = torch.arange(12.0).view(4, 3).T  # not contiguous
        weight = RandomWeight("w", mean, index, torch.tensor([0.5, 2.0]), Normal())
        expected = mean.clone()
        expected[0, 1] += 0.5
        expected[1, 2] -= 2.0
        assert torch.equal(weight.sample(torch.tensor([1.0, -1.0])), expected)
        assert torch.equal(weight.offset(torch.tensor([1.0, -1.0])), expected - mean)
        assert weight.random_mean.tolist() == [mean[0, 1], mean[1, 2]]
        channels_last = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
        weight = RandomWeight("w", channels_last, index, torch.tensor([0.5, 2.0]), Normal())
        changed = (weight.sample(torch.ones(2)) - channels_last).abs() > 1e-3
        assert changed.nonzero().tolist() == [[0, 0, 0, 1], [0, 0, 1, 2]]

    def test_the_mean_is_not_written_to(self):
        mean = torch.zeros(3)
        weight = RandomWeight("w", mean, torch.tensor([1]), torch.ones(1), Normal())
        weight.sample(torch.ones(1))
        weight.sample(torch.ones(4, 1))
        assert not mean.any()

    def test_noise_belongs_to_the_random_coordinates(self):
        weight = RandomWeight("w", torch.zeros(3, 4), torch.tensor([1, 5]), torch.ones(2), Normal())
        assert weight.noise().shape == (2,)
        assert weight.noise(samples=5).shape == (5, 2)
        first, again = (weight.noise(torch.Generator().manual_seed(4), 3) for _ in range(2))
        assert torch.equal(first, again)


# Normal(per="filter"): one scale for each output of a layer


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ConvTranspose2d(4, 6, 2, groups=2), nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(24, 5)
    )


def test_one_number_is_stored_for_each_filter() -> None:
    bnn = lb.Bayesian(model(), posterior=Normal(0.1, per="filter"))
    shapes = {name: tuple(parts.rho.shape) for name, parts in bnn.parts()}
    assert shapes["0.weight"] == (4, 1, 1, 1)
    assert shapes["1.weight"] == (1, 3, 1, 1)  # six outputs in two groups
    assert shapes["4.weight"] == (5, 1)
    assert shapes["0.bias"] == (4,)
    assert count_parameters(bnn).scales == 4 + 4 + 3 + 6 + 6 + 6 + 5 + 5
    assert bnn.summary().random == sum(p.numel() for p in bnn.model.parameters())
    assert all(parts.rho.is_contiguous() for _, parts in bnn.parts())


@pytest.mark.parametrize(
    "start", [0.1, lb.posteriors.GaussianRho(-2.0, 0.3), lb.posteriors.RelativeScale(0.5)], ids=repr
)
def test_where_scales_start(start: object) -> None:
    weights = torch.randn(3, 4, 2, requires_grad=True)
    family = Normal(start, per="filter")
    spread = family.spread(family.initial(weights, torch.Generator().manual_seed(0)))
    assert spread.shape == (3, 1, 1)
    assert not spread.requires_grad
    if isinstance(start, float):
        torch.testing.assert_close(spread, torch.full((3, 1, 1), 0.1))
    elif isinstance(start, lb.posteriors.RelativeScale):
        torch.testing.assert_close(spread, 0.5 * weights.detach().abs().mean((1, 2), keepdim=True))
    else:
        assert len(spread.unique()) == 3
    for few in (torch.randn(5), torch.randn(())):
        assert family.initial(few, None).shape == few.shape


@pytest.mark.parametrize("kl", [lb.Exact(), lb.MonteCarlo(3)], ids=repr)
@pytest.mark.parametrize(
    "prior",
    [torch.distributions.Normal(0.0, 0.5), lb.priors.FittedPrior(), lb.priors.CentredPrior(0.3), Laplace(0.0, 1.0)],
    ids=repr,
)
def test_divergence_and_entropy_are_those_of_one_scale_for_each_weight(kl: object, prior: object) -> None:
    few, many = (
        lb.Bayesian(model().double(), posterior=Normal(0.2, per=per), prior=prior, kl=kl)
        for per in ("filter", "weight")
    )
    result, truth = (bnn.kl(generator=torch.Generator().manual_seed(4)) for bnn in (few, many))
    torch.testing.assert_close(result, truth, rtol=1e-11, atol=0)
    torch.testing.assert_close(few.entropy(), many.entropy(), rtol=1e-11, atol=0)
    result.backward()
    truth.backward()
    for (_, ours), (_, theirs) in zip(few.parts(), many.parts(), strict=True):
        torch.testing.assert_close(ours.rho.grad, theirs.rho.grad.sum_to_size(ours.rho.shape), rtol=1e-9, atol=1e-10)


def test_a_large_tensor_draws_noise_for_each_weight() -> None:
    """Above the size from which kernels make the noise, the scales too."""
    mean = torch.zeros(140_000, 2)
    weight = RandomWeight("w", mean, None, None, Normal(per="filter"), torch.zeros(140_000, 1))
    drawn = weight.draw(torch.Generator().manual_seed(0))
    assert weight.sums is None
    torch.testing.assert_close(drawn, weight.sample(weight.noise(torch.Generator().manual_seed(0))))
    assert abs(torch.corrcoef(drawn.T)[0, 1]) < 0.02
    buffer = mean.clone()
    weight.draw_into(buffer, torch.Generator().manual_seed(0))
    torch.testing.assert_close(buffer, drawn)


def test_shared_scales_in_half_precision() -> None:
    bnn = lb.Bayesian(model().bfloat16(), posterior=Normal(0.1, per="filter"), propagate="local")
    out = bnn(torch.randn(2, 2, 3, 3).bfloat16())
    assert out.dtype == torch.bfloat16
    assert torch.isfinite(out).all()
    assert torch.isfinite(bnn.kl())


def test_shared_scales_come_back_from_a_file(tmp_path: Path) -> None:
    bnn = lb.Bayesian(model(), posterior=Normal(lb.posteriors.GaussianRho(), per="filter"))
    lb.save(bnn, tmp_path / "x.lb")
    again = lb.load(tmp_path / "x.lb", model())
    assert again.posterior == bnn.posterior
    for (_, ours), (_, theirs) in zip(again.parts(), bnn.parts(), strict=True):
        assert torch.equal(ours.rho, theirs.rho)
    assert (tmp_path / "x.lb").stat().st_size < 4 * (2 * sum(p.numel() for p in bnn.model.parameters())) + 4000


def test_shared_scales_train() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 2)
    y = (x[:, 0] > 0).long()
    net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
    bnn = lb.Bayesian(net, posterior=Normal(per="filter"), propagate="local")
    before = [parts.rho.detach().clone() for _, parts in bnn.parts()]
    lb.fit(bnn, [(x, y)], likelihood=lb.Categorical(), epochs=60, optimizer=lb.Optimization(lr=0.05), kl_weight=0.1)
    assert (lb.predict(bnn, x).mean.argmax(1) == y).double().mean() > 0.9
    assert all((parts.rho != old).any() for (_, parts), old in zip(bnn.parts(), before, strict=True))


def test_only_whole_tensors_can_share() -> None:
    with pytest.raises(lb.errors.InputError, match=r"only \d+ of '0.weight'.*per=\"weight\""):
        lb.Bayesian(nn.Sequential(nn.Linear(4, 3)), subspace=lb.random_k(0.5), posterior=Normal(per="filter"))
    with pytest.raises(lb.errors.UnknownName, match="per 'layer'"):
        Normal(per="layer")
