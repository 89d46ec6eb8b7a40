"""Activations that are computed again against those that are kept, in the cases that could tell them apart."""

import threading
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import leanbayes as lb
from leanbayes._ops import rectified, sparse
from leanbayes._ops.rectified import Rectified, Saved, release, remember
from leanbayes.evaluation.cost.resources import peak_memory
from leanbayes.subspace.storage import keep_layout

pytest.importorskip("numba")


class Block(nn.Module):
    """A residual block, of which some activations have several users."""

    def __init__(self, act=F.relu, inplace=False):
        super().__init__()
        self.conv1, self.conv2, self.conv3 = (nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(3))
        self.bn1, self.bn2, self.bn3 = (nn.BatchNorm2d(16) for _ in range(3))
        self.act, self.inplace = act, inplace

    def forward(self, x):
        if self.inplace:
            hidden = F.relu_(self.bn1(self.conv1(x)))
            out = self.bn2(self.conv2(hidden))
            out += self.bn3(self.conv3(x))
            return F.relu_(out)
        hidden = self.act(self.bn1(self.conv1(x)))
        first = self.act(self.bn2(self.conv2(hidden)) + self.bn3(self.conv3(x)))
        return self.act(first + self.bn1(self.conv1(first)))


def network(**options):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), Block(**options), Block(**options),
        nn.Conv2d(16, 16, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3),
    )  # fmt: skip
    return lb.make_sparse(model, 0.2)


def images(dtype=torch.float32):
    return torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(1)).to(dtype)


def gradients(model, x):
    model.zero_grad()
    model(x).pow(2).sum().backward()
    return [p.grad.clone() for p in model.parameters()]


@contextmanager
def keeping(monkeypatch):
    """Keep all activations, as without the module."""
    with monkeypatch.context() as patch:
        patch.setattr(sparse, "release", lambda *_: None)
        yield


@contextmanager
def counted(monkeypatch):
    """Collect the activations that are released."""
    made = []
    with monkeypatch.context() as patch:
        patch.setattr(rectified, "Rectified", type("Counted", (Rectified,), {
            "__init__": lambda self, *a: made.append(1) or Rectified.__init__(self, *a)
        }))  # fmt: skip
        yield made


def equal(ones, others):
    assert len(ones) == len(others)
    assert all(torch.equal(one, other) for one, other in zip(ones, others, strict=True))


@pytest.mark.parametrize("inplace", [False, True])
def test_gradients_are_equal_bit_for_bit(monkeypatch, inplace):
    with keeping(monkeypatch):
        expected = gradients(network(inplace=inplace), images())
    with counted(monkeypatch) as made:
        equal(gradients(network(inplace=inplace), images()), expected)
    assert len(made) >= 5


def test_gradients_are_those_of_the_plain_network_in_float64():
    model = network()
    plain = lb.densify(model).double()
    model(images()).pow(2).sum().backward()
    plain(images(torch.float64)).pow(2).sum().backward()
    truths = dict(plain.named_parameters())
    for name, parameter in model.named_parameters():
        if name in truths:
            truth = truths[name].grad
            assert (parameter.grad - truth).norm() <= 1e-4 * truth.norm() + 1e-4, name


@pytest.mark.parametrize("change", ["eval", "double", "gelu", "autocast", "nothing normed"])
def test_other_networks_are_as_before(monkeypatch, change):
    def result():
        model, x = network(act=F.gelu if change == "gelu" else F.relu), images()
        if change == "eval":
            model.eval()
        if change == "double":
            model, x = model.double(), x.double()
        if change == "nothing normed":
            for module in model.modules():
                for name in ("bn1", "bn2", "bn3"):
                    if hasattr(module, name):
                        setattr(module, name, nn.Identity())
        with torch.autocast("cpu", torch.bfloat16, enabled=change == "autocast"):
            loss = model(x).float().pow(2).sum()
        found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        return [gradient for gradient in found if gradient is not None]

    with keeping(monkeypatch):
        expected = result()
    equal(result(), expected)


def test_less_is_kept(monkeypatch):
    model, x = network(), images()
    gradients(model, x)
    with keeping(monkeypatch):
        before = peak_memory(lambda: gradients(model, x))
    assert peak_memory(lambda: gradients(model, x)) < 0.75 * before


def test_two_passes_and_a_second_derivative(monkeypatch):
    def twice():
        model = network()
        loss = model(images()).pow(2).sum()
        first = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        second = torch.autograd.grad(loss, list(model.parameters()))
        equal(first, second)
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        return first

    with keeping(monkeypatch):
        expected = twice()
    equal(twice(), expected)


def test_a_value_is_dropped_after_its_last_use(monkeypatch):
    made = []
    init = Rectified.__init__
    monkeypatch.setattr(Rectified, "__init__", lambda self, *a: made.append(self) or init(self, *a))
    loss = network()(images()).sum()
    loss.backward(retain_graph=True)
    assert made
    assert all(activation._value is None for activation in made)
    loss.backward(retain_graph=True)
    assert all(activation._value is None for activation in made)


@pytest.mark.parametrize("quietly", [False, True])
def test_changes_in_place_are_an_error(quietly):
    conv, norm = lb.make_sparse(nn.Conv2d(16, 16, 3), 0.2, dense=()), nn.Sequential(nn.BatchNorm2d(16))
    keep_layout(norm)
    x = torch.randn(64, 16, 8, 8, requires_grad=True)
    y = F.relu(norm(x))
    result = conv(y)
    with torch.set_grad_enabled(not quietly):
        y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()
    inner = sparse.batch_innermost(x * 1)
    result = conv(F.relu(norm(inner)))
    with torch.no_grad():
        inner.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_hooks_of_users_and_checkpoints(monkeypatch):
    with keeping(monkeypatch):
        expected = gradients(network(), images())
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(1) or t, lambda t: t):
        equal(gradients(network(), images()), expected)
    assert packed
    with torch.autograd.graph.save_on_cpu():
        equal(gradients(network(), images()), expected)

    class Checkpointed(nn.Module):
        def __init__(self, inner, reentrant):
            super().__init__()
            self.inner, self.reentrant = inner, reentrant

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=self.reentrant)

    for reentrant in (False, True):
        model = network()
        model[3] = Checkpointed(model[3], reentrant)  # and the next block is not
        equal(gradients(model, images()), expected)


def test_two_threads_through_one_graph():
    model = network()
    loss = model(images()).pow(2).sum()
    expected = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    results = [None, None]

    def run(number):
        results[number] = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        equal(result, expected)


class Scaled:
    """A norm of one operation, in any precision."""

    def __init__(self, x, factor):
        self.x, self.like, self.factor = Saved(x), x.detach(), factor

    def value(self):
        return self.x.get() * self.factor

    def rectified(self, plus):
        return F.relu(self.value() if plus is None else self.value() + plus)


class Product(torch.autograd.Function):
    """A product that keeps its input, and can be differentiated twice."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, g * x


def test_gradcheck_and_second_derivatives_in_float64(monkeypatch):
    monkeypatch.setattr(rectified, "_LEAST", 1)  # numbers

    def function(x, w):
        y = x
        for _ in range(6):  # longer than the longest chain
            n = y * 0.5
            held = y
            remember(n, lambda _, held=held: Scaled(held, 0.5))
            y = F.relu(n + y)
            result = Product.apply(y, w)
            release(y, y, result)
            y = F.relu(remember(result * 1, lambda _, result=result: Scaled(result, 1)))
            z = Product.apply(y, w)
            release(y, y, z)
        return z

    x, w = (torch.rand(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    with counted(monkeypatch) as made:
        assert torch.autograd.gradcheck(function, (x, w))
        assert torch.autograd.gradgradcheck(function, (x, w))
    assert made
