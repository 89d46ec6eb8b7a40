"""The fused ways through a layer against the plain formula in float64: values, fractions and gradients."""

import copy

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes._ops import moments as ops
from leanbayes.lab.models import resnet18
from leanbayes.propagate.moments import spread


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 10), nn.Linear(10, 4)

    def forward(self, x):
        return self.second(torch.relu(self.first(x))).mean(1)


def convolutions(norm: bool = False) -> nn.Module:
    layers = [
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 12, 3, stride=2, padding=1, groups=2),
        nn.ReLU(),
        nn.Conv2d(12, 8, 2, dilation=2, padding="valid"),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 6, 3, stride=2, output_padding=1),
        nn.Conv2d(6, 6, 3, padding="same"),
    ]
    if norm:
        layers[2:2] = [nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.conv, self.norm, self.shortcut = nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6), nn.BatchNorm2d(6)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = torch.relu(self.norm(self.conv(x)) + x)
        return torch.relu(self.norm(self.conv(x)) + self.shortcut(x)).mean((2, 3))


NETS = {
    "convolutions": (convolutions, (3, 3, 12, 12)),
    "with batch norm": (lambda: convolutions(True), (3, 3, 12, 12)),
    "residual": (Residual, (3, 3, 7, 7)),
    "tokens": (Tokens, (5, 9, 6)),
}
SUBSPACES = {
    "every weight": lb.everything(),
    "a tenth": lb.random_k(0.1),
    "no norm": lb.everything(eligible=lb.not_norm),
}


def moments_and_gradients(bnn: lb.Bayesian, x, **options):
    mean, variance = lb.moments(bnn, x, by=lb.propagate.Moments(**({"rank": 0, "kernels": "exact"} | options)))
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(2, *mean.shape, generator=generator, dtype=torch.float64).to(mean.dtype)
    x_gradient, *gradients = torch.autograd.grad(
        (weights[0] * mean + weights[1] * variance).sum(), [x, *bnn.parameters()], allow_unused=True
    )
    return mean, variance, x_gradient, gradients


@pytest.mark.parametrize("positions", ["split", "independent"])
@pytest.mark.parametrize("subspace", SUBSPACES)
@pytest.mark.parametrize("name", NETS)
def test_sweeps_and_sparse_products_give_what_the_formulas_give(name, subspace, positions, monkeypatch):
    monkeypatch.setattr(ops, "_LEAST", 1)
    monkeypatch.setattr(spread, "_FEWEST_ENTRIES", 1)
    make, shape = NETS[name]
    model = make().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.5, 2)
            module.weight.data.uniform_(0.5, 2)
            module.bias.data.normal_()
    bnn = lb.Bayesian(model, subspace=SUBSPACES[subspace], posterior=lb.posteriors.Normal(0.1))
    x = torch.randn(shape, requires_grad=True)
    exact, x_exact = copy.deepcopy(bnn).double(), x.detach().double().requires_grad_()
    found, truth = (moments_and_gradients(b, v, positions=positions) for b, v in ((bnn, x), (exact, x_exact)))
    for one, other in zip(found[:3], truth[:3], strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)
    for one, other in zip(found[3], truth[3], strict=True):
        assert (one is None) == (other is None)
        if other is not None:
            assert (one - other).norm() <= 1e-4 * other.norm() + 1e-6


@pytest.mark.parametrize("length", [8, 20])
def test_batch_norm_of_sequences_has_its_channels_second(length, monkeypatch):
    monkeypatch.setattr(ops, "_LEAST", 1)
    model = nn.Sequential(nn.Conv1d(3, 8, 3, padding=1), nn.BatchNorm1d(8)).eval()
    model[1].running_var.uniform_(0.1, 5)
    bnn, x = lb.Bayesian(model, posterior=lb.posteriors.Normal(0.1)), torch.randn(4, 3, length)
    with torch.no_grad():
        found, truth = lb.moments(bnn, x), lb.moments(copy.deepcopy(bnn).double(), x.double())
    for one, other in zip(found, truth, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)


def test_the_backward_pass_of_a_residual_net_keeps_little(monkeypatch):
    """Per layer: its input's mean and variance, and the norm's; what a relu needs is made again."""
    monkeypatch.setattr(ops, "_LEAST", 1)
    x = torch.randn(8, 3, 32, 32)
    plain = resnet18(10, 3)
    bnn = lb.fix_statistics(lb.Bayesian(copy.deepcopy(plain), posterior=lb.posteriors.Normal(0.01)).train())

    def kept(run, model) -> int:
        own = {p.untyped_storage().data_ptr() for p in model.parameters()}
        sizes: dict[int, int] = {}

        def pack(tensor):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own and tensor.dim() == 4 and tensor.shape[0] == 8:
                sizes[storage.data_ptr()] = storage.nbytes()
                alive.append(tensor)
            return tensor

        alive: list[torch.Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            out = run()
        del out
        return sum(sizes.values())

    carried = kept(lambda: lb.moments(bnn, x, by=lb.propagate.Moments(rank=0, kernels="exact")), bnn)
    assert carried < 2.05 * kept(lambda: plain(x), plain)
