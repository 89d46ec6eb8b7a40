"""Whole unmodified models: exact where they are linear, and the oracle for the diagonal where they are not."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

import leanbayes as lb
from leanbayes.errors import InputError, MissingRule, ShapeMismatch
from leanbayes.lab.models import mlp
from leanbayes.propagate.by_covariance import covariance
from tests.oracles import covariance_within_standard_errors


def weight_samples(bnn: lb.Bayesian, x: Tensor, n: int = 20_000) -> Tensor:
    with torch.no_grad():
        weights = bnn.draw(n, generator=torch.Generator().manual_seed(0))
        run = vmap(lambda w: functional_call(bnn.model, w, (x,)))
        return torch.cat([run({k: v[i : i + 2000] for k, v in weights.items()}) for i in range(0, n, 2000)])


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.AvgPool2d(2),
        nn.Conv2d(4, 6, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 3),
    ).double()


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.LeakyReLU(), nn.MaxPool2d(2))
        self.body = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.SiLU(), nn.Dropout())
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x += self.body(x)
        return torch.log_softmax(self.head(x.mean((2, 3))), 1)


def test_a_linear_net_is_exact() -> None:
    """Three layers of random weights, no kink: all moments of products of independent weights are right."""
    model = nn.Sequential(
        nn.Conv1d(2, 3, 2), nn.AvgPool1d(2, 1), nn.Flatten(), nn.Linear(6, 4), nn.Linear(4, 2)
    ).double()
    bnn, x = lb.Bayesian(model, posterior=lb.posteriors.Normal(0.5)), torch.randn(1, 2, 4, dtype=torch.float64)
    with torch.no_grad():
        mean, result = covariance(bnn, x)
    assert torch.equal(mean, model(x))
    drawn = weight_samples(bnn, x, 100_000)
    covariance_within_standard_errors(drawn, mean, result[0], errors=4.5)


def test_one_layer_to_the_last_digit() -> None:
    bnn, x = (
        lb.Bayesian(nn.Conv2d(2, 3, 2).double(), posterior=lb.posteriors.Normal(0.3)),
        torch.randn(1, 2, 3, 3).double(),
    )
    noisy = covariance(bnn, x, input_variance=0.2)[1]
    for row, result in zip(x, noisy, strict=True):

        def run(z: Tensor, w: Tensor, b: Tensor) -> Tensor:
            return torch.conv2d(z, w, b).flatten()

        inputs = (row, bnn.model.weight, bnn.model.bias)
        slopes = [jacrev(run, place)(*inputs).flatten(1) for place in range(3)]
        truth = sum(v * s @ s.T for v, s in zip((0.2, 0.09, 0.09), slopes, strict=True))
        mixed = jacrev(jacrev(run, 0), 1)(*inputs).reshape(slopes[0].shape[0], -1)
        torch.testing.assert_close(result, truth + 0.2 * 0.09 * mixed @ mixed.T)


def test_it_is_nearer_to_20000_weight_samples_than_either_diagonal() -> None:
    bnn, x = lb.Bayesian(conv_net(), posterior=lb.posteriors.Normal(0.1)), torch.randn(4, 1, 8, 8).double()
    drawn = weight_samples(bnn, x)
    truth = drawn.std(0)
    with torch.no_grad():
        mean, result = covariance(bnn, x)
        ways = [lb.propagate.Moments(positions=kind) for kind in ("shared", "independent")]
        diagonals = [lb.moments(bnn, x, by=way)[1].sqrt() for way in ways]
    deviation = result.diagonal(dim1=1, dim2=2).sqrt()
    error = ((deviation - truth) / truth).abs().max()
    assert error < 0.02
    assert all(((other - truth) / truth).abs().max() > 3 * error for other in diagonals)
    assert ((mean - drawn.mean(0)) / truth).abs().max() < 0.03
    centred = drawn - drawn.mean(0)
    true = torch.einsum("sni,snj->nij", centred, centred) / len(drawn)
    scale = truth.unsqueeze(-1) * truth.unsqueeze(-2)
    assert ((result - true) / scale).abs().max() < 0.04  # the correlations, which no diagonal has
    assert (true / scale)[:, 0, 1].abs().max() > 0.1
    assert torch.linalg.eigvalsh(result).min() > 0


def test_of_tied_positions_nothing_averages_out() -> None:
    """A constant image: all positions of a filter are one number, whatever is averaged."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    result = covariance(lb.Bayesian(model, posterior=lb.posteriors.Normal(0.3)), torch.ones(1, 1, 6, 6))[1]
    alone = covariance(lb.Bayesian(model, posterior=lb.posteriors.Normal(0.3)), torch.ones(1, 1, 3, 3))[1]
    torch.testing.assert_close(result, alone, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("training", [False, True])
def test_an_unmodified_net_with_norms_pools_and_branches_passes(training: bool) -> None:
    bnn, x = lb.Bayesian(Branch().train(training), posterior=lb.posteriors.Normal(0.02)), torch.randn(2, 1, 8, 8)
    mean, result = covariance(bnn, x)
    assert type(mean) is type(result) is Tensor
    assert result.shape == (2, 3, 3)
    (mean.square().sum() + result.sum() + result.diagonal(dim1=1, dim2=2).sum()).backward()
    for name, parts in bnn.parts():
        assert torch.isfinite(parts.rho.grad).all(), name
    assert all(type(parameter) is nn.Parameter for parameter in bnn.model.parameters())


@pytest.mark.parametrize("make", [conv_net, Branch])
def test_as_the_weights_become_sure_it_becomes_the_plain_model(make) -> None:
    model, x = make().double().eval(), torch.randn(2, 1, 8, 8, dtype=torch.float64)
    with torch.no_grad():
        mean, result = covariance(lb.Bayesian(model, posterior=lb.posteriors.Normal(1e-9)), x)
        torch.testing.assert_close(mean, model(x), rtol=1e-7, atol=1e-9)
    assert 0 < result.diagonal(dim1=1, dim2=2).max() < 1e-9


def test_a_part_of_the_weights_and_held_ones() -> None:
    model, x = mlp(6, 3), torch.randn(4, 6)
    bnn = lb.Bayesian(model, subspace=lb.layers("5"), posterior=lb.posteriors.Normal(0.1))
    mean, result = covariance(bnn, x)
    hidden = model[:5](x)
    torch.testing.assert_close(mean, model(x))
    torch.testing.assert_close(result, torch.diag_embed((0.01 * hidden.square().sum(1) + 0.01)[:, None].expand(4, 3)))
    with bnn.at_mean():
        mean, result = covariance(bnn, x)
        assert torch.equal(mean, model(x))
        assert result.shape == (4, 3, 3)
        assert not result.any()
        assert covariance(bnn, x, input_variance=0.1)[1].any()


def test_several_outputs_and_bad_arguments() -> None:
    class Two(nn.Linear):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return super().forward(x), x * 2

    bnn, x = lb.Bayesian(Two(3, 2)), torch.ones(4, 3)
    _, (result, nothing) = covariance(bnn, x)
    assert result.shape == (4, 2, 2)
    assert nothing.shape == (4, 3, 3)
    assert not nothing.any()
    with pytest.raises(ShapeMismatch, match="broadcast"):
        covariance(bnn, x, input_variance=torch.ones(5))
    with pytest.raises(InputError, match="finite and not negative"):
        covariance(bnn, x, input_variance=-1.0)
    with pytest.raises(InputError, match="GB"):
        covariance(lb.Bayesian(nn.Conv2d(1, 64, 3)), torch.ones(1, 1, 100, 100))
    with pytest.raises(MissingRule, match=r"layer_norm.*'1' \(LayerNorm\)"):
        covariance(lb.Bayesian(nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))), x)


def test_in_inference_mode() -> None:
    bnn, x = lb.Bayesian(conv_net()), torch.randn(2, 1, 8, 8).double()
    with torch.no_grad():
        expected = covariance(bnn, x)
    with torch.inference_mode():
        result = covariance(bnn, x)
    for one, other in zip(result, expected, strict=True):
        assert torch.equal(one, other)
