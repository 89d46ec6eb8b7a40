"""Many draws of the last layer: unbiased, with the variance of eq. 8 of Nazarovs et al. 2021, and closed forms."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import leanbayes as lb


def model(outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, outputs)).double()


@pytest.fixture
def x():
    return torch.randn(5, 4, dtype=torch.float64)


def nlls(bnn, x, y, likelihood, count, **options) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        result = [lb.elbo(bnn, x, y, likelihood, n_data=5, generator=generator, **options).nll for _ in range(count)]
    return torch.stack(result)


@pytest.mark.parametrize(
    "posterior",
    [lb.posteriors.Normal(0.4), lb.posteriors.Radial(1.0), lb.posteriors.Laplace(0.3)],
    ids=lambda p: type(p).__name__,
)
def test_the_mean_is_that_of_plain_draws_and_the_variance_less(posterior, x):
    bnn, y = lb.Bayesian(model(), posterior=posterior, kl=lb.MonteCarlo(1)), torch.tensor([0, 1, 2, 0, 1])
    plain = nlls(bnn, x, y, lb.Categorical(), 600)
    many = nlls(bnn, x, y, lb.Categorical(), 200, last_layer_samples=30)
    error = math.sqrt(plain.var() / len(plain) + many.var() / len(many))
    assert abs(plain.mean() - many.mean()) < 4 * error
    assert many.var() < 0.7 * plain.var()


def test_with_only_the_last_layer_random_regression_is_exact(x):
    bnn = lb.Bayesian(model(1), subspace=lb.layers("2"), posterior=lb.posteriors.Normal(0.4))
    y = torch.randn(5, 1, dtype=torch.float64)
    result = lb.elbo(bnn, x, y, lb.Gaussian(0.7), n_data=5, last_layer_samples=2).nll
    hidden = bnn.model[:2](x)
    mean, variance = bnn.model(x), 0.16 * (hidden.square().sum(1, keepdim=True) + 1)
    truth = 0.5 * (math.log(2 * math.pi * 0.49) + ((y - mean).square() + variance) / 0.49).mean()
    torch.testing.assert_close(result, truth)


def test_folded_draws_are_the_loop_over_draws(x):
    bnn = lb.Bayesian(model(), subspace=lb.layers("2"), posterior=lb.posteriors.Laplace(0.3))
    y = torch.tensor([0, 1, 2, 0, 1])
    result = lb.elbo(
        bnn, x, y, lb.Categorical(), n_data=5, last_layer_samples=7, generator=torch.Generator().manual_seed(1)
    ).nll
    generator = torch.Generator().manual_seed(1)
    w, b = (bnn.weights()[name] for name in ("2.weight", "2.bias"))
    weights, biases = (part.sample(part.noise(generator, 7)) for part in (w, b))
    hidden = bnn.model[:2](x)
    each = [F.cross_entropy(F.linear(hidden, *parts), y) for parts in zip(weights, biases, strict=True)]
    torch.testing.assert_close(result, torch.stack(each).mean())


def test_a_last_convolution_and_pixels():
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1))
    x, y = torch.randn(3, 1, 5, 5), torch.randint(0, 2, (3, 5, 5))
    for posterior in (lb.posteriors.Normal(0.1), lb.posteriors.Logistic(0.1)):
        bnn = lb.Bayesian(net, posterior=posterior)
        lb.elbo(bnn, x, y, lb.Categorical(), n_data=3, last_layer_samples=4).loss.backward()
        assert all(parts.rho.grad.abs().sum() > 0 for _, parts in bnn.parts())


def test_the_polynomial_of_binary_classes(x):
    """Against quadrature, for logits near 0: the next term of the series is −u⁴/192."""
    bnn = lb.Bayesian(model(1), subspace=lb.layers("2"), posterior=lb.posteriors.Normal(0.02))
    with torch.no_grad():
        bnn.model[2].weight.mul_(0.1)
        bnn.model[2].bias.zero_()
    y = torch.tensor([[0.0], [1.0], [1.0], [0.0], [1.0]], dtype=torch.float64)
    closed = lb.elbo(bnn, x, y, lb.Bernoulli(polynomial=True), n_data=5, last_layer_samples=2).nll
    mean, variance = lb.moments(bnn, x)
    u = mean + variance.sqrt() * torch.randn(
        200_000, 5, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    sampled = F.binary_cross_entropy_with_logits(u, y.expand_as(u), reduction="none").mean((1, 2))
    bound = (u**4).mean() / 192 + 4 * sampled.std() / math.sqrt(200_000)
    assert (closed - sampled.mean()).abs() < bound


def test_what_cannot_be_done_is_said(x):
    y = torch.tensor([0, 1, 2, 0, 1])
    first = lb.Bayesian(model(), subspace=lb.layers("0"))
    with pytest.raises(lb.errors.InputError, match="not random"):
        lb.elbo(first, x, y, lb.Categorical(), n_data=5, last_layer_samples=2)
    moments = lb.Bayesian(model(), propagate="moments")
    with pytest.raises(lb.errors.InputError, match="no layer is drawn"):
        lb.elbo(moments, x, y, lb.Categorical(), n_data=5, last_layer_samples=2)
    with pytest.raises(lb.errors.InputError):
        lb.elbo(first, x, y, lb.Categorical(), n_data=5, last_layer_samples=0)
