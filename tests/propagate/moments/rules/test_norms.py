"""Layer norm, linear layers and attention of tokens: the sweeps over memory against torch's operations."""

import pytest
import torch
import torch.nn.functional as F

import leanbayes as lb
from leanbayes._ops import moments as ops
from leanbayes.propagate.moments import Correlations, MomentTensor, Setting
from leanbayes.propagate.moments.rules import norms


def tokens(setting: Setting, *shape: int, share: bool = True) -> MomentTensor:
    rho = torch.rand(shape[0], 1, shape[2]) if share else None
    return MomentTensor.of(torch.randn(shape), torch.rand(shape), Correlations(rho), setting)


def vector(setting: Setting, size: int) -> MomentTensor:
    return MomentTensor.of(1 + torch.randn(size) / 4, torch.rand(size) / 4, None, setting)


@pytest.mark.parametrize("positions", ["split", "shared", "independent"])
@pytest.mark.parametrize("random", [True, False])
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("count", [40, 1])
def test_layer_norm_in_one_sweep_is_the_same(monkeypatch, positions, random, share, count):
    setting = Setting(positions=positions)
    x = tokens(setting, 3, count, 24, share=share and count > 1)
    gain, offset = (vector(setting, 24) for _ in range(2)) if random else (torch.rand(24), torch.randn(24))
    with torch.no_grad():
        usual = F.layer_norm(x, (24,), gain, offset, 1e-3)
        monkeypatch.setattr(ops, "_LEAST", 1)
        swept = F.layer_norm(x, (24,), gain, offset, 1e-3)
    assert usual.averages is None
    assert swept.averages is not None
    torch.testing.assert_close(swept.expected, usual.expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(swept.variance, usual.variance, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(swept.averages.variance, usual.variance.mean(1, keepdim=True), rtol=1e-5, atol=1e-6)
    one, other = swept.correlations.positions, usual.correlations.positions
    assert (one is None) == (other is None)
    if one is not None:
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_layer_norm_without_variance_is_that_of_torch(monkeypatch):
    monkeypatch.setattr(ops, "_LEAST", 1)
    x = torch.randn(3, 40, 24)
    with torch.no_grad():
        normed = F.layer_norm(MomentTensor.of(x, torch.zeros_like(x), None, Setting()), (24,))
    assert torch.equal(normed.expected, F.layer_norm(x, (24,)))
    assert not normed.variance.any()


def test_the_sweep_keeps_what_is_no_number(monkeypatch):
    monkeypatch.setattr(ops, "_LEAST", 1)
    x = torch.randn(2, 40, 24)
    x[0, 3, 1], x[1, 5, 2] = torch.nan, torch.inf
    with torch.no_grad():
        normed = F.layer_norm(MomentTensor.of(x, torch.ones_like(x), None, Setting()), (24,))
    broken = (~normed.variance.isfinite()).any(-1).nonzero().tolist()
    assert broken == [[0, 3], [1, 5]]


@pytest.mark.parametrize("positions", ["split", "shared"])
def test_a_linear_layer_knows_its_mean_variance(positions):
    setting = Setting(positions=positions)
    weight = MomentTensor.of(torch.randn(5, 24), torch.rand(5, 24), None, setting)
    with torch.no_grad():
        y = F.linear(tokens(setting, 3, 40, 24), weight, vector(setting, 5))
    torch.testing.assert_close(y.averages.variance, y.variance.mean(1, keepdim=True))


@pytest.mark.parametrize("rank", [0, 4])
def test_a_transformer_with_and_without_sweeps(monkeypatch, rank):
    """The sweeps meet norms, attention, GELU and residual sums; every one of them can be left to torch."""
    torch.manual_seed(0)
    from leanbayes.lab.models import vit

    bnn = lb.Bayesian(vit(3, 4, size=(16, 16), width=24, depth=2, heads=3), posterior=lb.posteriors.Normal(0.05)).eval()
    x, by = torch.randn(6, 3, 16, 16), lb.propagate.Moments(rank=rank)
    with torch.no_grad():
        usual = lb.moments(bnn, x, by=by)
        monkeypatch.setattr(ops, "_LEAST", 1)
        called = []
        monkeypatch.setattr(norms, "norm_tokens", lambda *args: called.append(args) or ops.norm_tokens(*args))
        swept = lb.moments(bnn, x, by=by)
    assert called
    with_gradients = lb.moments(bnn, x, by=by)
    for one, other, third in zip(swept, usual, with_gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(third, other, rtol=1e-4, atol=1e-5)
