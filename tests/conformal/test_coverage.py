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
