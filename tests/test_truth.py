"""Bayesian linear regression with orthogonal inputs: the posterior factorises, so mean-field training must find it."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

import leanbayes as lb
from leanbayes.posteriors.initial import inverse_softplus

PROPAGATIONS = ["sample", "mirrored", "local", "flipout"]


@dataclass(frozen=True)
class Problem:
    """y = Xw + ε with XᵀX = nI, ε ~ N(0, noise²) and w ~ N(0, prior²)."""

    x: Tensor
    y: Tensor
    noise: float
    prior: float

    @property
    def precision(self) -> float:
        """1 / variance of the exact posterior, the same for each coordinate."""
        return len(self.x) / self.noise**2 + 1 / self.prior**2

    @property
    def mean(self) -> Tensor:
        return self.x.T @ self.y[:, 0] / self.noise**2 / self.precision

    @property
    def std(self) -> float:
        return self.precision**-0.5

    @property
    def log_evidence(self) -> Tensor:
        covariance = self.noise**2 * torch.eye(len(self.x), dtype=torch.float64) + self.prior**2 * self.x @ self.x.T
        return MultivariateNormal(torch.zeros(len(self.x), dtype=torch.float64), covariance).log_prob(self.y[:, 0])

    def model(self) -> nn.Linear:
        return nn.Linear(self.x.shape[1], 1, bias=False, dtype=torch.float64)

    def law(self) -> torch.distributions.Normal:
        zero = torch.zeros((), dtype=torch.float64)
        return torch.distributions.Normal(zero, zero + self.prior)

    def likelihood(self) -> lb.Gaussian:
        return lb.Gaussian(self.noise).double()


@pytest.fixture
def problem() -> Problem:
    """32 examples, 4 weights; the prior counts for a fifth of the precision, so it cannot be left out unseen."""
    generator = torch.Generator().manual_seed(1)
    n, d, noise, prior = 32, 4, 1.5, 0.5
    x = torch.linalg.qr(torch.randn(n, d, dtype=torch.float64, generator=generator)).Q * math.sqrt(n)
    truth = torch.tensor([[1.0], [-0.5], [0.2], [0.0]], dtype=torch.float64)
    y = x @ truth + noise * torch.randn(n, 1, dtype=torch.float64, generator=generator)
    problem = Problem(x, y, noise, prior)
    assert torch.allclose(x.T @ x, n * torch.eye(d, dtype=torch.float64), atol=1e-10)
    return problem


def train(bnn: lb.Bayesian, problem: Problem, kl_weight: float = 1.0) -> tuple[Tensor, Tensor]:
    """Full-batch Adam with a falling learning rate; μ and σ averaged over the second half, as Polyak does."""
    steps, samples, generator = 400, 6, torch.Generator().manual_seed(2)
    likelihood, n = problem.likelihood(), len(problem.x)
    optimizer = torch.optim.Adam(bnn.parameter_groups(lr=0.06))
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1 ** (1 / steps))
    path = []
    for step in range(steps):
        result = lb.elbo(
            bnn, problem.x, problem.y, likelihood, n_data=n, samples=samples, kl_weight=kl_weight, generator=generator
        )
        optimizer.zero_grad()
        result.loss.backward()
        optimizer.step()
        schedule.step()
        if step >= steps // 2:
            path.append(
                (bnn.model.weight.detach().flatten().clone(), bnn.weights()["weight"].spread.detach().flatten())
            )
    means, scales = zip(*path, strict=True)
    return torch.stack(means).mean(0), torch.stack(scales).mean(0)


@pytest.mark.parametrize("propagate", PROPAGATIONS)
def test_training_finds_the_exact_posterior(problem: Problem, propagate: str) -> None:
    torch.manual_seed(3)
    bnn = lb.Bayesian(problem.model(), prior=problem.law(), propagate=propagate)
    mean, std = train(bnn, problem)
    assert (mean - problem.mean).abs().max() < 0.1 * problem.std
    torch.testing.assert_close(std, torch.full_like(std, problem.std), rtol=0.05, atol=0)


@pytest.mark.parametrize("propagate", PROPAGATIONS)
def test_the_bound_is_tight_at_the_exact_posterior(problem: Problem, propagate: str) -> None:
    """−n·E[loss] = log p(y | X) where q is the posterior, and less by KL(q‖posterior) elsewhere."""
    bnn = lb.Bayesian(problem.model(), prior=problem.law(), propagate=propagate)
    ((_, parts),) = bnn.parts()
    n, likelihood, generator = len(problem.x), problem.likelihood(), torch.Generator().manual_seed(4)
    for factor in (1.0, 1.7):
        with torch.no_grad():
            bnn.model.weight.copy_(problem.mean)
            parts.rho.copy_(inverse_softplus(torch.full_like(parts.rho, factor * problem.std)))
            losses = torch.stack(
                [
                    lb.elbo(bnn, problem.x, problem.y, likelihood, n_data=n, generator=generator).loss
                    for _ in range(1500)
                ]
            )
        gap = problem.x.shape[1] * (factor**2 / 2 - math.log(factor) - 0.5)  # Σ KL(N(m, (fs)²)‖N(m, s²))
        bound = -n * losses.mean()
        assert (bound - (problem.log_evidence - gap)).abs() < 5 * n * losses.std() / math.sqrt(len(losses))


def test_a_subspace_finds_its_conditional_posterior_and_the_rest_its_maximum(problem: Problem) -> None:
    """Orthogonal inputs: random weights keep their posterior; the others, without a prior, go to least squares."""
    subspace = lb.top_k({"weight": torch.tensor([[0.0, 3.0, 0.0, 2.0]])}, k=2)
    torch.manual_seed(3)
    bnn = lb.Bayesian(problem.model(), subspace=subspace, prior=problem.law(), propagate="local")
    mean, std = train(bnn, problem)
    assert (mean - problem.mean)[[1, 3]].abs().max() < 0.1 * problem.std
    torch.testing.assert_close(std, torch.full_like(std, problem.std), rtol=0.05, atol=0)
    least_squares = problem.x.T @ problem.y[:, 0] / len(problem.x)
    assert (mean - least_squares)[[0, 2]].abs().max() < 0.1 * problem.std


def test_a_tempered_kl_finds_the_tempered_posterior(problem: Problem) -> None:
    """kl_weight β makes the precision n/(βs²)·… : q ∝ likelihood^(1/β) · prior."""
    beta = 0.25
    precision = len(problem.x) / (beta * problem.noise**2) + 1 / problem.prior**2
    torch.manual_seed(3)
    bnn = lb.Bayesian(problem.model(), prior=problem.law(), propagate="local")
    mean, std = train(bnn, problem, kl_weight=beta)
    exact = problem.x.T @ problem.y[:, 0] / (beta * problem.noise**2) / precision
    assert (mean - exact).abs().max() < 0.1 * precision**-0.5
    torch.testing.assert_close(std, torch.full_like(std, precision**-0.5), rtol=0.05, atol=0)


def test_prediction_after_training_is_the_exact_predictive(problem: Problem) -> None:
    """Var(f(x)) = |x|²·std², and the total adds the noise; exact weights are put in, so only sampling error is left."""
    bnn = lb.Bayesian(problem.model(), prior=problem.law())
    ((_, parts),) = bnn.parts()
    with torch.no_grad():
        bnn.model.weight.copy_(problem.mean)
        parts.rho.copy_(inverse_softplus(torch.full_like(parts.rho, problem.std)))
    samples = 4000
    result = lb.predict(
        bnn,
        problem.x,
        likelihood=problem.likelihood(),
        samples=samples,
        generator=torch.Generator().manual_seed(5),
    )
    epistemic = (problem.x.square().sum(1) * problem.std**2).unsqueeze(1)
    assert ((result.mean[:, 0] - problem.x @ problem.mean).abs() < 5 * (epistemic[:, 0] / samples).sqrt()).all()
    assert ((result.epistemic - epistemic).abs() < 5 * math.sqrt(2 / samples) * epistemic).all()
    torch.testing.assert_close(result.total, result.epistemic + problem.noise**2, rtol=1e-6, atol=0)
