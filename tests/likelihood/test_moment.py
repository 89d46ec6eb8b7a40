"""The two scores of moments against densities of torch and scipy, and against autograd's own Jacobian."""

import math

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.likelihood.moment import MeanCrossEntropy, MomentLikelihood

MOMENTS = [MeanCrossEntropy(), MomentLikelihood(), MomentLikelihood(lb.Gaussian(0.3)), MomentLikelihood(lb.Bernoulli())]


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def positive(*shape: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64) + 0.1


def probabilities(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """J Σ Jᵀ of the softmax, row by row, with the Jacobian from autograd."""
    p = mean.softmax(1)
    spread = []
    for row, v in zip(mean, variance, strict=True):
        jacobian = torch.autograd.functional.jacobian(lambda z: z.softmax(0), row)
        spread.append((jacobian @ torch.diag(v) @ jacobian.T).diagonal())
    return p, torch.stack(spread)


def test_classes_are_the_density_of_one_hot_targets() -> None:
    mean, variance, y = 2 * normal(6, 4), positive(6, 4), torch.randint(0, 4, (6,))
    p, v = probabilities(mean, variance)
    truth = -stats.norm(p, (v + 0.01).sqrt()).logpdf(F.one_hot(y, 4)).sum()
    result = MomentLikelihood(floor=0.01).expected_nll(mean, variance, y)
    assert result.item() == pytest.approx(truth, rel=1e-12)


def test_pixels_with_class_weights_and_void() -> None:
    mean, variance, y = 2 * normal(2, 3, 4, 5), positive(2, 3, 4, 5), torch.randint(0, 3, (2, 4, 5))
    y[0, 1] = 255
    weights = torch.tensor([0.5, 1.0, 3.0])
    result = MomentLikelihood(lb.Categorical(weights, ignore_index=255)).expected_nll(mean, variance, y)
    rows, spread, labels = (t.movedim(1, -1).reshape(-1, 3) for t in (mean, variance, y.unsqueeze(1).expand_as(mean)))
    truth = 0.0
    for row, v, label in zip(rows, spread, labels[:, 0].tolist(), strict=True):
        if label != 255:
            truth += weights[label].item() * MomentLikelihood().expected_nll(row[None], v[None], torch.tensor([label]))
    torch.testing.assert_close(result, truth, rtol=1e-12, atol=0)


def test_labels_have_the_moments_of_their_probabilities() -> None:
    """To first order, in the limit of small variances: p(1 − p)σ."""
    mean, y = 2 * normal(5, 3), torch.randint(0, 2, (5, 3))
    variance, p = torch.full_like(mean, 1e-6), mean.sigmoid()
    law = torch.distributions.Normal(p, ((p * (1 - p)).square() * 1e-6 + 1e-4).sqrt())
    weights = torch.tensor([2.0, 0.5, 1.0])
    factors = torch.where(y == 1, weights, 1.0)
    result = MomentLikelihood(lb.Bernoulli(weights), floor=1e-4).expected_nll(mean, variance, y)
    torch.testing.assert_close(result, -(factors * law.log_prob(y.double())).sum(), rtol=1e-5, atol=0)


def test_regression_is_the_density_of_the_target() -> None:
    mean, variance, y = normal(6, 2), positive(6, 2), normal(6, 2)
    result = MomentLikelihood(lb.Gaussian(0.3)).expected_nll(mean, variance, y)
    assert result.item() == pytest.approx(-stats.norm(mean, (variance + 0.09).sqrt()).logpdf(y).sum(), rel=1e-12)
    by_input = torch.cat([mean, torch.full_like(mean, math.log(0.09))], 1)
    spread = torch.cat([variance, torch.zeros_like(variance)], 1)
    torch.testing.assert_close(MomentLikelihood(lb.Gaussian("input")).expected_nll(by_input, spread, y), result)


def test_the_right_variance_of_a_regression_is_the_best() -> None:
    """The score is proper: over many targets of variance 0.5, v = 0.5 is the best of all."""
    y = math.sqrt(0.5) * torch.randn(20_000, 1, dtype=torch.float64)
    tried = torch.linspace(0.3, 0.8, 51, dtype=torch.float64)
    scores = [MomentLikelihood(lb.Gaussian(1e-4)).expected_nll(torch.zeros_like(y), v.expand_as(y), y) for v in tried]
    assert tried[torch.stack(scores).argmin()] == pytest.approx(0.5, abs=0.021)


def test_cross_entropy_is_that_of_the_mean() -> None:
    mean, y = normal(6, 4), torch.randint(0, 4, (6,))
    for variance in (positive(6, 4), torch.zeros(6, 4)):
        result = MeanCrossEntropy().expected_nll(mean, variance, y)
        torch.testing.assert_close(result, F.cross_entropy(mean, y, reduction="sum"))


@pytest.mark.parametrize("likelihood", MOMENTS, ids=lambda each: f"{type(each).__name__}-{type(each.of).__name__}")
def test_draws_and_predictions_are_those_of_the_likelihood_under_it(likelihood: MomentLikelihood) -> None:
    mean, variance = normal(5, 4), positive(5, 4)
    y = torch.arange(5) % 4 if isinstance(likelihood.of, lb.Categorical) else torch.ones(5, 4, dtype=torch.float64)
    assert torch.equal(likelihood.nll(mean, y), likelihood.of.nll(mean, y))
    result, other = (each.uncertainty_of_moments(mean, variance, 64) for each in (likelihood, likelihood.of))
    assert torch.equal(result.mean, other.mean)
    assert torch.equal(result.total, other.total)
    assert likelihood.fewest == likelihood.of.fewest
    bnn = lb.Bayesian(nn.Linear(3, 4).double())
    one, two = (
        lb.predict(bnn, mean[:, :3], likelihood=each, samples=4, generator=torch.Generator().manual_seed(0))
        for each in (likelihood, likelihood.of)
    )
    assert torch.equal(one.mean, two.mean)


@pytest.mark.parametrize("likelihood", MOMENTS[1:], ids=lambda each: type(each.of).__name__)
def test_gradients(likelihood: MomentLikelihood) -> None:
    mean, variance = normal(3, 4).requires_grad_(), positive(3, 4).requires_grad_()
    y = torch.arange(3) if isinstance(likelihood.of, lb.Categorical) else torch.ones(3, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda m, v: likelihood.expected_nll(m, v, y), (mean, variance))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_sure_networks_have_a_finite_loss(dtype: torch.dtype) -> None:
    mean = torch.tensor([[200.0, -200.0, 0.0], [0.0, 0.0, 200.0]], dtype=dtype, requires_grad=True)
    for variance in (torch.zeros_like(mean), torch.full_like(mean, 1000.0)):
        loss = MomentLikelihood().expected_nll(mean, variance.detach().requires_grad_(), torch.tensor([1, 2]))
        assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        (gradient,) = torch.autograd.grad(loss, mean)
        assert torch.isfinite(loss)
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("likelihood", [MeanCrossEntropy(), MomentLikelihood(floor=1e-2)], ids=repr)
def test_it_trains_and_reports_one_pass(likelihood: lb.Likelihood) -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 2)
    y = (x[:, 0] > 0).long()
    bnn = lb.Bayesian(nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2)), propagate="moments")
    result = lb.elbo(bnn, x, y, likelihood, n_data=64)
    torch.testing.assert_close(result.nll, likelihood.expected_nll(*lb.moments(bnn, x), y) / 64)
    lb.fit(
        bnn,
        [(x, y)] * 2,
        likelihood=likelihood,
        epochs=15,
        optimizer=lb.Optimization(lr=0.05),
        kl_weight=0.01,
        validate=[(x, y)],
    )
    assert (lb.predict(bnn, x).mean.argmax(1) == y).double().mean() > 0.9


def test_learned_noise_is_trained() -> None:
    likelihood = MomentLikelihood(lb.Gaussian("learned"))
    assert len(list(likelihood.parameters())) == 1
    likelihood.expected_nll(normal(4, 1), positive(4, 1), normal(4, 1)).backward()
    assert likelihood.of.log_variance.grad.abs() > 0


def test_bad_arguments() -> None:
    with pytest.raises(lb.errors.InputError, match="MomentLikelihood"):
        MeanCrossEntropy(lb.Gaussian(1.0))
    for floor in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(lb.errors.InputError, match="floor"):
            MomentLikelihood(floor=floor)
    with pytest.raises(lb.errors.InputError, match="got MeanCrossEntropy"):
        MomentLikelihood(MeanCrossEntropy())
    for likelihood in (MeanCrossEntropy(), MomentLikelihood()):
        with pytest.raises(lb.errors.ShapeMismatch, match="targets"):
            likelihood.expected_nll(normal(4, 3), positive(4, 3), torch.zeros(5, dtype=torch.long))
