import math

import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from leanbayes.errors import InputError
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
    found = posterior.spread(posterior.initial(torch.randn(3, 2, dtype=torch.float64), None))
    torch.testing.assert_close(found, torch.full((3, 2), float(scale), dtype=torch.float64), rtol=1e-13, atol=0)


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
