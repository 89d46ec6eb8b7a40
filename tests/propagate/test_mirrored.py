"""Two draws for a batch, mirror images of each other: what each half gets, and what a batch norm makes of them."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes._ops import sparse
from leanbayes._ops.sparse import watching
from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError
from leanbayes.posteriors import Normal, Radial
from leanbayes.subspace import random_k, scatters


@dataclass(frozen=True)
class Lopsided(Normal):
    symmetric: bool = False


def halves(model: nn.Module, x: Tensor, posterior: Normal | Radial, rate: float = 1.0) -> tuple[Tensor, Tensor]:
    """What one pass adds to the plain model, for each half of a batch of twins."""
    bnn = Bayesian(model, propagate="mirrored", posterior=posterior, subspace=random_k(rate))
    with torch.no_grad():
        first, second = (bnn(torch.cat([x, x])) - model(torch.cat([x, x]))).chunk(2)
    return first, second


@pytest.mark.parametrize("posterior", [Normal(0.5), Radial(0.5)], ids=str)
@pytest.mark.parametrize("rate", [0.3, 1.0])
@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Linear(3, 4), (5, 3)),
        (lambda: nn.Linear(3, 4), (5, 2, 3)),
        (lambda: nn.Conv2d(2, 4, 3, groups=2, padding=1), (5, 2, 4, 4)),
        (lambda: nn.ConvTranspose1d(2, 3, 2), (5, 2, 4)),
        (lambda: nn.BatchNorm2d(3).eval(), (5, 3, 2, 2)),
        (lambda: nn.BatchNorm1d(3).train(), (5, 3)),
    ],
)
def test_what_one_half_gets_the_other_gets_with_the_sign_turned(make, shape, rate: float, posterior) -> None:
    torch.manual_seed(0)
    model, x = make().double(), torch.randn(shape, dtype=torch.float64)
    first, second = halves(model, x, posterior, rate)
    assert first.abs().max() > 1e-4
    torch.testing.assert_close(second, -first, rtol=1e-10, atol=1e-10)


def test_the_statistics_of_a_batch_of_twins_keep_their_mean_and_feel_noise_to_second_order() -> None:
    """The mean of ±Δx is 0 exactly, the variance grows by that of Δx: at a 100th of the noise a 10,000th as much."""
    torch.manual_seed(0)
    layer, x = nn.Linear(3, 4).double(), torch.randn(50, 3, dtype=torch.float64)
    twins = torch.cat([x, x])

    def variances(scale: float, propagate: str) -> Tensor:
        torch.manual_seed(1)
        bnn = Bayesian(layer, propagate=propagate, posterior=Normal(scale))
        out = bnn(twins).detach()
        if propagate == "mirrored":
            torch.testing.assert_close(out.mean(0), layer(twins).mean(0).detach(), rtol=1e-10, atol=1e-10)
        return (out.var(0) - layer(twins).var(0).detach()).abs()

    torch.testing.assert_close(variances(0.01, "mirrored") * 10_000, variances(1.0, "mirrored"), rtol=1e-6, atol=1e-9)
    assert (variances(0.01, "sample") * 10_000 > 2 * variances(1.0, "sample")).all()


@pytest.mark.parametrize(("count", "mirrored"), [(1, 0), (2, 1), (5, 2)])
def test_of_an_odd_batch_the_first_half_is_the_larger(count: int, mirrored: int) -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    bnn = Bayesian(model, propagate="mirrored", posterior=Normal(0.5))
    with torch.no_grad():
        noise = (bnn(torch.ones(count, 2)) - model(torch.ones(count, 2))).flatten()
    assert (noise * noise[0] < 0).tolist() == [False] * (count - mirrored) + [True] * mirrored


def test_without_a_batch_there_is_one_draw() -> None:
    torch.manual_seed(0)
    model, x = nn.Conv1d(4, 2, 1), torch.ones(4, 3)
    noise = Bayesian(model, propagate="mirrored", posterior=Normal(0.5))(x) - model(x)
    torch.testing.assert_close(noise, noise[:, :1].expand_as(noise))


def test_noise_that_is_not_symmetric_is_refused() -> None:
    with pytest.raises(InputError, match=r'symmetric about 0, which Lopsided\(.*\) is not; use propagate="sample"'):
        Bayesian(nn.Linear(2, 1), posterior=Lopsided(), propagate="mirrored")(torch.ones(2, 2))


# ---------------------------------------------------------------- sparse weights, in one sweep over the stored ones


def sparse_network(bias):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 48, 3, padding=1), nn.Conv2d(48, 48, 3, padding=1, bias=bias), nn.BatchNorm2d(48), nn.ReLU()]
    return nn.Sequential(*layers, nn.AvgPool2d(4), nn.Flatten(), nn.Linear(48 * 16, 10))


def results(bias, inside, batch=64):
    """Outputs, gradients of all parameters, and the dense gradients that rewiring looks at."""
    torch.manual_seed(1)
    subspace = lb.sparse(0.05, seed=0) if inside is None else lb.sparse(0.05, seed=0, inside=inside)
    bnn = lb.Bayesian(sparse_network(bias), subspace=subspace, propagate="mirrored").train()
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
        # The gradient of a bias in front of batch norm is 0: what is there is the rounding of sums that cancel, whose
        # terms are those of the gradient of the norm's bias.
        size = theirs["model.2.bias" if name == "model.1.bias" else name].abs().max().item()
        torch.testing.assert_close(value, theirs[name], rtol=1e-4, atol=1e-5 * max(size, 1), msg=name)


@pytest.mark.parametrize("batch", [63, 62, 1])
def test_a_batch_that_the_kernel_cannot_take_is_computed_all_the_same(batch):
    """One example has no second half, 63 have unequal halves, and halves of 31 do not fill a vector."""
    bnn = lb.Bayesian(sparse_network(True), subspace=lb.sparse(0.05, seed=0), propagate="mirrored").eval()
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
