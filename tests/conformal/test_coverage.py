"""Coverage, sizes and their groups are counted as they are defined."""

import pytest
import torch
from scipy import stats
from torch import nn

import leanbayes as lb
from leanbayes.conformal import Intervals, Sets, coverage_of


def test_coverage_of_sets() -> None:
    source = torch.Generator().manual_seed(0)
    x = 2 * torch.randn(600, 3, generator=source)
    y = torch.distributions.Categorical(logits=x).sample()
    y[-1] = -100

    def side(inputs: torch.Tensor) -> torch.Tensor:
        return (inputs[:, 0] > 0).long()

    sets = Sets(nn.Identity(), 0.8, "lac", side).calibrate([(x[:300], y[:300])])
    found = coverage_of(sets, [(x[300:400], y[300:400]), (x[400:], y[400:])])
    chosen, truth = sets.sets(x[300:599]), y[300:599]
    hit = chosen.gather(1, truth[:, None])[:, 0]
    assert (found.overall.covered, found.overall.count) == (int(hit.sum()), 299)
    exact = stats.binomtest(found.overall.covered, 299).proportion_ci(0.95, method="exact")
    assert found.overall.interval == pytest.approx((exact.low, exact.high))
    assert found.size == pytest.approx(chosen.sum(1).double().mean().item())
    assert found.empty == pytest.approx((~chosen.any(1)).double().mean().item())
    assert found.by_class[1].share == pytest.approx(hit[truth == 1].double().mean().item())
    assert sum(share.count for share in found.by_size.values()) == 299
    assert found.by_group[1].count == int(side(x[300:599]).sum())
    with pytest.raises(lb.errors.InputError, match="no test examples"):
        coverage_of(sets, [])


def test_coverage_of_intervals() -> None:
    x = torch.linspace(-1, 1, 99)[:, None]
    intervals = Intervals(nn.Identity(), 0.9, "absolute").calibrate([(x, torch.zeros_like(x))])
    found = coverage_of(intervals, [(torch.zeros(4, 1), torch.tensor([[0.0], [0.5], [2.0], [-0.9]]))])
    assert (found.overall.covered, found.overall.count) == (3, 4)
    assert found.size == pytest.approx(2 * abs(x[4].item()))
    assert (found.by_class, found.by_group) == ({}, {})


def test_coverage_by_groups_that_the_calibration_did_not_know_and_by_width() -> None:
    source = torch.Generator().manual_seed(1)
    x = torch.rand(4000, 1, generator=source)
    y = x + (0.1 + x) * torch.randn(4000, 1, generator=source)

    class Wide(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return torch.cat([inputs, 2 * (0.1 + inputs).log()], 1)

    def half(inputs: torch.Tensor) -> torch.Tensor:
        return (inputs[:, 0] > 0.5).long()

    def measured(score: str) -> lb.conformal.Coverage:
        intervals = Intervals(Wide(), 0.9, score, likelihood=lb.Gaussian("input"))
        return coverage_of(intervals.calibrate([(x[:2000], y[:2000])]), [(x[2000:], y[2000:])], groups=half)

    absolute, scaled = measured("absolute"), measured("scaled")
    assert absolute.by_size == {}  # all have one width
    assert absolute.by_group[0].share > 0.97
    assert absolute.by_group[1].share < 0.87
    assert [share.count for share in scaled.by_size.values()] == [500] * 4
    for share in (*scaled.by_size.values(), *scaled.by_group.values()):
        assert abs(share.share - 0.9) < 0.05
    with pytest.raises(lb.errors.ShapeMismatch, match="one integer for each"):
        coverage_of(Intervals(nn.Identity()).calibrate([(x, y)]), [(x, y)], groups=lambda inputs: inputs)
