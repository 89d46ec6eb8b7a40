"""Moments of sparse networks: the way by stored weights alone against the dense one."""

import threading

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes._ops import compiled
from leanbayes.propagate import Moments
from leanbayes.propagate.moments.rules import linear as rule
from leanbayes.propagate.moments.rules import sparse_linear

MODES = {
    "default": Moments(),
    "no factors": Moments(rank=0),
    "exact": Moments(kernels="exact"),
    "exact, no factors": Moments(rank=0, kernels="exact"),
    "independent": Moments(rank=0, positions="independent", kernels="exact"),
    "shared": Moments(positions="shared", rank=3),
    "taylor": Moments(order="taylor"),
}


class Net(nn.Module):
    """A residual network with norms, pools, groups, strides and biases."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.conv, self.norm = nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)
        self.down = nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.short = nn.Conv2d(32, 64, 1, stride=2)
        self.grouped = nn.Conv2d(64, 64, 3, padding=2, dilation=2, groups=2)
        self.pool, self.last, self.head = nn.MaxPool2d(2), nn.Conv2d(64, 64, 3, padding="same"), nn.Linear(64, 80)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = torch.relu(self.norm(self.conv(x)) + x)
        x = torch.relu(self.down(x) + self.short(x))
        x = self.pool(torch.relu(self.grouped(x)))
        return self.head(torch.relu(self.last(x)).mean((2, 3)))


def network(block=1, dtype=torch.float32, **options):
    torch.manual_seed(0)
    bnn = lb.Bayesian(Net(), subspace=lb.sparse(density=0.05, block=block, **options), propagate="moments").eval()
    bnn.model.norm.running_mean.uniform_(-1, 1)
    return bnn.to(dtype)


def by_dense_weights(monkeypatch, bnn, x, by):
    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(rule, "sparse_moments", lambda *_: None)
        return lb.moments(bnn, x, by=by)


@pytest.fixture
def taken(monkeypatch):
    """The layers that were computed from their stored weights."""
    results, whole = [], sparse_linear.sparse_moments

    def noted(*args):
        result = whole(*args)
        results.append(result is not None)
        return result

    monkeypatch.setattr(rule, "sparse_moments", noted)
    return results


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("block", [1, 16])
def test_moments_equal_those_by_dense_weights(mode, block, monkeypatch, taken):
    bnn, x = network(block), torch.randn(40, 3, 12, 12)
    with torch.no_grad():
        ours = lb.moments(bnn, x, by=MODES[mode])
    assert sum(taken) >= 4
    for a, b in zip(ours, by_dense_weights(monkeypatch, bnn, x, MODES[mode]), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=1e-5 * float(b.abs().max()))


@pytest.mark.parametrize("mode", ["default", "exact, no factors"])
def test_double_precision_agrees_to_its_own_digits(mode, monkeypatch, taken):
    bnn, x = network(dtype=torch.float64), torch.randn(40, 3, 12, 12, dtype=torch.float64)
    with torch.no_grad():
        ours = lb.moments(bnn, x, by=MODES[mode])
    assert any(taken)
    torch.testing.assert_close(ours, by_dense_weights(monkeypatch, bnn, x, MODES[mode]), rtol=1e-9, atol=1e-11)


def test_recording_gradients_changes_no_number(taken):
    bnn, x = network(), torch.randn(40, 3, 12, 12)
    with torch.no_grad():
        ours = lb.moments(bnn, x)
    count = len(taken)
    recorded = lb.moments(bnn, x)
    assert len(taken) == count  # the way with gradients asks for none of it
    for a, b in zip(ours, recorded, strict=True):
        torch.testing.assert_close(a, b.detach(), rtol=2e-4, atol=1e-5 * float(b.detach().abs().max()))
    recorded[1].sum().backward()
    assert all(p.grad is not None for name, p in bnn.named_parameters() if "original" in name)


def test_stored_weights_that_are_not_random_have_no_variance(monkeypatch, taken):
    model = lb.make_sparse(Net(), 0.05)
    scores = {name: torch.rand_like(p) for name, p in model.named_parameters()}
    bnn = lb.Bayesian(model, subspace=lb.top_k(scores, rate=0.3), propagate="moments").eval()
    x = torch.randn(40, 3, 12, 12)
    with torch.no_grad():
        ours = lb.moments(bnn, x)
    assert any(taken)
    for a, b in zip(ours, by_dense_weights(monkeypatch, bnn, x, Moments()), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=1e-5 * float(b.abs().max()))


def test_without_numba_the_moments_are_the_same(monkeypatch, taken):
    bnn, x = network(), torch.randn(40, 3, 12, 12)
    with torch.no_grad():
        ours = lb.moments(bnn, x)
        taken.clear()
        monkeypatch.setattr(compiled, "available", lambda: False)
        others = lb.moments(bnn, x)
    assert not any(taken)
    for a, b in zip(ours, others, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * float(b.abs().max()))


def test_two_threads_predict_with_one_model():
    bnn, x = network(), torch.randn(40, 3, 12, 12)
    bnn.predict_by = Moments()
    expected = lb.predict(bnn, x).mean
    results = []
    threads = [threading.Thread(target=lambda: results.append(lb.predict(bnn, x).mean)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 2
    assert all(torch.equal(result, expected) for result in results)


def test_the_input_of_a_layer_keeps_its_values():
    bnn, x = network(), torch.randn(40, 3, 12, 12)
    before = x.clone()
    with torch.no_grad():
        lb.moments(bnn, x)
    assert torch.equal(x, before)
