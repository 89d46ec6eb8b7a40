"""Mirrored draws of sparse weights: one sweep over the stored weights against two products of dense halves."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes._ops import sparse
from leanbayes._ops.sparse import watching
from leanbayes.subspace import scatters


def network(bias):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 48, 3, padding=1), nn.Conv2d(48, 48, 3, padding=1, bias=bias), nn.BatchNorm2d(48), nn.ReLU()]
    return nn.Sequential(*layers, nn.AvgPool2d(4), nn.Flatten(), nn.Linear(48 * 16, 10))


def results(bias, inside, batch=64):
    """Outputs, gradients of all parameters, and the dense gradients that rewiring looks at."""
    torch.manual_seed(1)
    subspace = lb.sparse(0.05, seed=0) if inside is None else lb.sparse(0.05, seed=0, inside=inside)
    bnn = lb.Bayesian(network(bias), subspace=subspace, propagate="mirrored").train()
    x, seen = torch.randn(batch, 3, 16, 16), {}

    def watcher(name):
        return lambda: lambda gradient: seen.update({name: seen.get(name, 0) + gradient})

    watchers = {id(scatter.index): watcher(name) for name, scatter in scatters(bnn.model).items()}
    with watching(watchers):
        y = bnn(x, generator=torch.Generator().manual_seed(2))
        y.square().sum().backward()
    gradients = {name: value.grad for name, value in bnn.named_parameters() if value.grad is not None}
    return {"output": y.detach()} | gradients | {f"watched {name}": value for name, value in seen.items()}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("inside", [None, lb.random_k(rate=0.3, seed=0)], ids=["all stored", "some stored"])
def test_one_sweep_equals_two_dense_products(bias, inside, monkeypatch):
    calls = []
    halves = sparse.conv_halves
    monkeypatch.setattr(sparse, "conv_halves", lambda *a, **k: calls.append(halves(*a, **k)) or calls[-1])
    ours = results(bias, inside)
    assert len(calls) == 1
    assert calls[0] is not None  # the kernel was used
    for name in ("conv_halves", "linear_halves"):
        monkeypatch.setattr(sparse, name, lambda *a, **k: None)
    theirs = results(bias, inside)
    assert ours.keys() == theirs.keys()
    assert any(name.startswith("watched") for name in ours)
    for name, value in ours.items():
        size = theirs[name].abs().max().item()
        torch.testing.assert_close(value, theirs[name], rtol=1e-4, atol=1e-5 * max(size, 1), msg=name)


@pytest.mark.parametrize("batch", [63, 62, 1])
def test_a_batch_that_the_kernel_cannot_take_is_computed_all_the_same(batch):
    """One example has no second half, 63 have unequal halves, and halves of 31 do not fill a vector."""
    bnn = lb.Bayesian(network(True), subspace=lb.sparse(0.05, seed=0), propagate="mirrored").eval()
    x = torch.randn(batch, 3, 16, 16)
    with torch.no_grad():
        drawn = bnn(x, generator=torch.Generator().manual_seed(2))
        plain = bnn.densify()(x)
    assert drawn.shape == plain.shape
    difference = (drawn - plain).abs()
    assert 0 < difference.max() < 1


def test_halves_see_opposite_draws():
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Conv2d(64, 64, 3, padding=1, bias=False))[2:]
    bnn = lb.Bayesian(layer, subspace=lb.sparse(0.05, seed=0, dense=()), propagate="mirrored")
    half = torch.randn(32, 64, 16, 16)
    with torch.no_grad():
        first, second = bnn(torch.cat([half, half])).chunk(2)
        middle = bnn.densify()(half)
    torch.testing.assert_close((first + second) / 2, middle, atol=1e-5, rtol=1e-4)
    assert (first - second).abs().max() > 1e-3
