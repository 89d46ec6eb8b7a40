"""Linear layers: the fused ways and the box against the plain formula in float64; values, fractions and gradients."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leanbayes as lb
from leanbayes._ops import moments as ops
from leanbayes.errors import UnknownName
from leanbayes.lab.models import resnet18
from leanbayes.propagate import Moments
from leanbayes.propagate.moments import MomentTensor, Setting
from leanbayes.propagate.moments.rules import linear as rule


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
        self.conv2, self.norm2 = nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = torch.relu(self.norm(self.conv(x)) + x)
        return torch.relu(self.norm2(self.conv2(x)) + self.shortcut(x)).mean((2, 3))


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
    monkeypatch.setattr(rule, "FEWEST_ENTRIES", 1)
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
    computed, truth = (moments_and_gradients(b, v, positions=positions) for b, v in ((bnn, x), (exact, x_exact)))
    for one, other in zip(computed[:3], truth[:3], strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)
    for one, other in zip(computed[3], truth[3], strict=True):
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
        computed, truth = lb.moments(bnn, x), lb.moments(copy.deepcopy(bnn).double(), x.double())
    for one, other in zip(computed, truth, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)


def test_the_backward_pass_of_a_residual_net_keeps_little(monkeypatch):
    """It keeps mean and variance of the input of each layer and norm; what a relu needs is computed again."""
    monkeypatch.setattr(ops, "_LEAST", 1)
    x = torch.randn(8, 3, 32, 32)
    plain = resnet18(10, 3)
    bnn = lb.fix_statistics(lb.Bayesian(copy.deepcopy(plain), posterior=lb.posteriors.Normal(0.01)).train())

    def bytes_kept(run, model) -> int:
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

    of_plain = bytes_kept(lambda: plain(x), plain)
    for kernels in ("exact", "box"):
        way = lb.propagate.Moments(rank=0, kernels=kernels)
        assert bytes_kept(lambda way=way: lb.moments(bnn, x, by=way), bnn) < 2.15 * of_plain


CONVOLUTIONS = {
    "1d": (F.conv1d, (3, 4, 11), (5, 4, 3), {"padding": 1}),
    "2d": (F.conv2d, (3, 4, 9, 8), (5, 4, 3, 2), {"padding": (1, 0)}),
    "2d with a stride": (F.conv2d, (3, 4, 9, 8), (5, 4, 3, 3), {"stride": (2, 1), "padding": 1}),
    "2d dilated": (F.conv2d, (3, 4, 9, 8), (5, 4, 3, 3), {"dilation": 2, "padding": "same"}),
    "2d of one example": (F.conv2d, (4, 9, 8), (5, 4, 3, 3), {}),
    "2d without a window": (F.conv2d, (3, 4, 9, 8), (5, 4, 1, 1), {"stride": 2, "padding": 1}),
    "3d": (F.conv3d, (2, 4, 5, 5, 5), (3, 4, 2, 3, 3), {"padding": 1}),
}


def random_tensor(mean: Tensor, variance: Tensor, **setting) -> MomentTensor:
    return MomentTensor.of(mean, variance, None, Setting(**setting))


def operands(name: str):
    _, shape, kernel, _ = CONVOLUTIONS[name]
    draw = torch.Generator().manual_seed(0)
    x, w = (torch.randn(s, generator=draw, dtype=torch.float64) for s in (shape, kernel))
    v, s, b = (torch.rand(z, generator=draw, dtype=torch.float64) for z in (shape, kernel, kernel[0]))
    return x, v, w, s, b


def averaged(w: Tensor) -> Tensor:
    return w.mean(tuple(range(2, w.dim())), keepdim=True).expand_as(w)


def shares(operation, x: Tensor, window: torch.Size, **options) -> Tensor:
    """Return how often each offset falls on the image, by a convolution of ones with that offset alone."""
    each = torch.eye(window.numel(), dtype=x.dtype).view(-1, 1, *window)
    hits = operation(torch.ones_like(x[:1, :1]), each, **options).flatten(2).mean(2)
    return hits.view(window)


@pytest.mark.parametrize("random", ["both", "the input"])
@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_it_is_the_formula_with_averaged_kernels(name, gradients, random, monkeypatch):
    monkeypatch.setattr(rule, "_PIECE", 300)  # several pieces, the last not full
    operation, _, _, options = CONVOLUTIONS[name]
    x, v, w, s, b = operands(name)
    weight = random_tensor(w, s, kernels="box") if random == "both" else w
    with torch.set_grad_enabled(gradients):
        y = operation(random_tensor(x, v, kernels="box"), weight, random_tensor(b, b, kernels="box"), **options)
    often = shares(operation, x, w.shape[2:], **options) if x.dim() == w.dim() else torch.ones_like(w[0, 0])
    often = often / often.mean()
    truth = operation(v, averaged(w.square() * often), b, **options)
    if random == "both":
        truth = truth + operation(x.square() + v, averaged(s * often), None, **options)
    torch.testing.assert_close(y.variance, truth, rtol=1e-12, atol=1e-12)
    assert torch.equal(y.expected, operation(x, w, b, **options))


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_it_is_exact_if_no_square_depends_on_the_offset(name):
    operation, _, _, options = CONVOLUTIONS[name]
    x, v, w, s, _ = operands(name)
    w, s = w.sign() * averaged(w.abs()), averaged(s)
    computed, truth = (
        operation(random_tensor(x, v, kernels=k), random_tensor(w, s, kernels=k), **options) for k in ("box", "exact")
    )
    torch.testing.assert_close(computed.variance, truth.variance, rtol=1e-12, atol=1e-12)


def test_it_is_exact_for_inputs_that_are_constant_within_a_window():
    _, _, w, s, _ = operands("2d")
    x, v = torch.full((2, 4, 6, 6), 0.7, dtype=torch.float64), torch.full((2, 4, 6, 6), 0.3, dtype=torch.float64)
    computed, truth = (
        F.conv2d(random_tensor(x, v, kernels=k), random_tensor(w, s, kernels=k)) for k in ("box", "exact")
    )
    torch.testing.assert_close(computed.variance, truth.variance, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [1, 2])
def test_where_most_of_a_filter_is_on_the_padding_the_mean_over_positions_stays(size):
    _, _, w, s, _ = operands("2d with a stride")
    x, v = (torch.full((2, 4, size, size), c, dtype=torch.float64) for c in (0.7, 0.3))
    computed, truth = (
        F.conv2d(random_tensor(x, v, kernels=k), random_tensor(w, s, kernels=k), padding=1).variance
        for k in ("box", "exact")
    )
    torch.testing.assert_close(computed.mean((2, 3)), truth.mean((2, 3)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("operation", [F.conv2d, F.conv_transpose2d])
def test_grouped_and_transposed_ones_stay_exact(operation):
    draw = torch.Generator().manual_seed(0)
    x, w = torch.randn(2, 4, 6, 6, generator=draw), torch.randn(4, 2, 3, 3, generator=draw)
    computed, truth = (
        operation(random_tensor(x, x.square(), kernels=k), random_tensor(w, w.square(), kernels=k), groups=2)
        for k in ("box", "exact")
    )
    assert torch.equal(computed.variance, truth.variance)


def test_gradients():
    x, v, w, s, _ = (t.requires_grad_() for t in operands("2d with a stride"))

    def variance(x: Tensor, v: Tensor, w: Tensor, s: Tensor) -> Tensor:
        y = F.conv2d(random_tensor(x, v, kernels="box"), random_tensor(w, s, kernels="box"), stride=2)
        return y.variance

    assert torch.autograd.gradcheck(variance, (x[:1, :, :5, :5], v[:1, :, :5, :5], w, s))


@pytest.mark.parametrize("rank", [0, 8])
@pytest.mark.parametrize("subspace", SUBSPACES)
@pytest.mark.parametrize("name", NETS)
def test_sweeps_and_averages_that_are_carried_on_change_nothing(name, subspace, rank, monkeypatch):
    monkeypatch.setattr(ops, "_LEAST", 1)
    monkeypatch.setattr(rule, "FEWEST_ENTRIES", 1)
    make, shape = NETS[name]
    bnn = lb.Bayesian(make().eval(), subspace=SUBSPACES[subspace], posterior=lb.posteriors.Normal(0.1))
    x = torch.randn(shape)
    exact = copy.deepcopy(bnn).double()
    truth = lb.moments(exact, x.double(), by=Moments(rank=rank))  # with gradients: no sweep keeps averages
    with torch.no_grad():
        computed = lb.moments(bnn, x, by=Moments(rank=rank))
    for one, other in zip(computed, truth, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)


class TestTheOption:
    def net(self) -> tuple[lb.Bayesian, Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.ReLU(), nn.Flatten())
        return lb.Bayesian(model, posterior=lb.posteriors.Normal(0.1)), torch.randn(5, 2, 9, 9)

    def test_it_is_the_default_with_and_without_gradients(self):
        bnn, x = self.net()
        with torch.no_grad():
            default, box = (lb.moments(bnn, x, by=by)[1] for by in (None, Moments(kernels="box")))
            exact = lb.moments(bnn, x, by=Moments(kernels="exact"))[1]
        assert torch.equal(default, box)
        assert not torch.allclose(box, exact, rtol=1e-3)
        torch.testing.assert_close(lb.moments(bnn, x)[1].detach(), box)

    def test_deviations_are_nearly_those_of_exact_kernels(self):
        bnn, x = self.net()
        with torch.no_grad():
            box, exact = (lb.moments(bnn, x, by=Moments(kernels=k))[1].sqrt() for k in ("box", "exact"))
        assert abs(box.sum() / exact.sum() - 1) < 0.02
        assert (box / exact - 1).abs().mean() < 0.1

    def test_without_variance_it_is_the_model_bit_for_bit(self):
        bnn, x = self.net()
        x = x.contiguous(memory_format=torch.channels_last)
        with torch.no_grad(), bnn.at_mean():
            mean, variance = lb.moments(bnn, x, input_variance=0.0)
            assert torch.equal(mean, bnn.model(x))
        assert not variance.any()

    def test_the_order_of_examples_does_not_matter(self):
        bnn, x = self.net()
        order = torch.tensor([3, 0, 4, 2, 1])
        with torch.no_grad():
            for one, other in zip(lb.moments(bnn, x[order]), lb.moments(bnn, x), strict=True):
                torch.testing.assert_close(one, other[order])

    def test_no_examples(self):
        bnn, x = self.net()
        with torch.no_grad():
            assert [part.shape for part in lb.moments(bnn, x[:0])] == [(0, 150), (0, 150)]

    def test_unknown_name(self):
        with pytest.raises(UnknownName, match="box"):
            Moments(kernels="boxes")
