"""IVON against closed forms, quadrature and Hessians."""

import copy
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.optim import IVON

N, D, NOISE, PRIOR = 200, 4, 0.5, 2.0


def linear_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, D, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 0.5, 2.0, 1.0]).double()
    truth = torch.tensor([1.0, -2.0, 0.3, 0.0], dtype=torch.float64)
    return x, (x @ truth + NOISE * torch.randn(N, generator=generator, dtype=torch.float64))[:, None]


def linear_model(propagate: str) -> lb.Bayesian:
    torch.manual_seed(1)
    model = nn.Linear(D, 1, bias=False, dtype=torch.float64)
    return lb.Bayesian(model, prior=torch.distributions.Normal(0.0, PRIOR), propagate=propagate)


@pytest.mark.parametrize(("propagate", "tolerance"), [("moments", 1e-6), ("local", 0.05), ("sample", 0.05)])
def test_the_posterior_of_linear_regression_is_recovered(propagate: str, tolerance: float) -> None:
    """The best factorised Gaussian has the exact mean A⁻¹b and the variances 1/Aᵢᵢ, with A = XᵀX/s² + I/s₀²."""
    x, y = linear_data()
    precision = x.T @ x / NOISE**2 + torch.eye(D, dtype=torch.float64) / PRIOR**2
    mean, scale = torch.linalg.solve(precision, x.T @ y / NOISE**2)[:, 0], precision.diagonal().rsqrt()
    bnn, steps = linear_model(propagate), 3000
    optimizer = IVON(bnn, lr=0.3, n_data=N, initial_curvature=3.0, beta2=0.99 if propagate == "moments" else 0.999)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(2)
    for _ in range(steps):
        optimizer.zero_grad()
        likelihood = lb.Gaussian(noise=NOISE)
        lb.elbo(bnn, x, y, likelihood, n_data=N, with_kl=False, samples=4, generator=generator).loss.backward()
        optimizer.step()
        schedule.step()
    weight = bnn.weights()["weight"]
    assert torch.allclose(weight.spread.detach().flatten(), scale, rtol=tolerance)
    assert ((weight.mean.detach().flatten() - mean).abs() / scale).max() < max(tolerance * 4, 1e-6)


def test_the_posterior_of_logistic_regression_is_recovered() -> None:
    """The optimum of the ELBO by Gauss-Hermite quadrature over the logit, whose law is Gaussian, in float64."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(N, 3, generator=generator, dtype=torch.float64)
    y = torch.rand(N, 1, generator=generator, dtype=torch.float64) < torch.sigmoid(x @ x.new_tensor([[1.5], [-1], [0]]))
    y = y.double()
    nodes, weights = (torch.tensor(v) for v in np.polynomial.hermite_e.hermegauss(40))
    mean = torch.zeros(3, 1, dtype=torch.float64, requires_grad=True)
    log_scale = torch.full((3, 1), -1.0, dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS([mean, log_scale], max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-14)

    def negative_elbo() -> Tensor:
        solver.zero_grad()
        spread = (x.square() @ (2 * log_scale).exp()).sqrt()
        logits = x @ mean + spread * nodes
        nll = F.binary_cross_entropy_with_logits(logits, y.expand_as(logits), reduction="none") @ weights
        kl = 0.5 * ((mean.square() + (2 * log_scale).exp()) / PRIOR**2 - 2 * log_scale).sum()
        loss = nll.sum() / math.sqrt(2 * math.pi) + kl
        loss.backward()
        return loss

    solver.step(negative_elbo)
    torch.manual_seed(4)
    model = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    bnn = lb.Bayesian(model, prior=torch.distributions.Normal(0.0, PRIOR), propagate="local")
    steps = 4000
    optimizer = IVON(bnn, lr=0.3, n_data=N, initial_curvature=0.2, beta2=0.9985)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        lb.elbo(bnn, x, y, lb.Bernoulli(), n_data=N, with_kl=False, generator=generator).loss.backward()
        optimizer.step()
        schedule.step()
    weight = bnn.weights()["weight"]
    assert torch.allclose(weight.spread.detach().T, log_scale.detach().exp(), rtol=0.04)
    assert ((weight.mean.detach().T - mean.detach()).abs() / log_scale.detach().exp()).max() < 0.25


def test_the_curvature_stays_positive_whatever_the_estimates() -> None:
    """u ← u(1 + x + x²/2) at least halves u = h + δ, whether the estimate is 10⁶, −10⁶ or near 0."""
    bnn = lb.Bayesian(nn.Linear(3, 2, bias=False))
    optimizer = IVON(bnn, lr=1e-3, n_data=50, beta2=0.9)
    (_, parts), decay = next(bnn.parts()), 1 / 50
    generator = torch.Generator().manual_seed(0)
    for step in range(200):
        before = optimizer.state[parts.rho]["curvature"].clone()
        estimate = torch.randn(2, 3, generator=generator) * 10.0 ** (step % 7)
        bnn.model.weight.grad = torch.zeros(2, 3)
        parts.rho.grad = estimate * torch.sigmoid(parts.rho.detach()) * F.softplus(parts.rho.detach())
        optimizer.step()
        assert torch.isfinite(parts.rho).all()
        assert (optimizer.state[parts.rho]["curvature"] + decay >= 0.499 * (before + decay)).all()


@pytest.mark.parametrize("propagate", ["sample", "mirrored", "flipout", "local"])
def test_the_estimate_is_the_expected_curvature(propagate: str) -> None:
    """The mean of (∂loss/∂σ)/σ over draws is E[∂²loss/∂w²], from the Hessian at many draws, within standard errors.

    Mirrored draws give each half of the batch its own sign, so that their estimate has the noise of the halves'
    gradients but no bias in a network without batch statistics.
    """
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(16, 3, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 4, (16,), generator=generator)
    torch.manual_seed(6)
    model = nn.Linear(3, 4, bias=False, dtype=torch.float64)
    bnn = lb.Bayesian(model, posterior=lb.posteriors.Normal(0.4), propagate=propagate)
    rho = next(bnn.parts())[1].rho
    estimates = []
    for _ in range(6000):
        bnn.zero_grad()
        F.cross_entropy(bnn(x, generator=generator), y).backward()
        estimates.append((rho.grad / (torch.sigmoid(rho) * F.softplus(rho))).detach().clone())
    estimate = torch.stack(estimates)
    draws = 3000
    noise = torch.randn(draws, 4, 3, generator=generator, dtype=torch.float64)
    p = torch.softmax(torch.einsum("ni,dci->dnc", x, model.weight + 0.4 * noise), 2)
    hessians = torch.einsum("dnc,ni->dci", p * (1 - p), x.square()) / len(x)  # the diagonal for softmax regression
    difference = estimate.mean(0) - hessians.mean(0).detach()
    error = (estimate.var(0) / len(estimate) + hessians.detach().var(0) / draws).sqrt()
    assert (difference.abs() < 4 * error).all()


def small_problem(**options: object) -> tuple[lb.Bayesian, Tensor, Tensor]:
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    bnn = lb.Bayesian(model, **options)
    return bnn, torch.randn(12, 5), torch.randint(0, 3, (12,))


def make_step(bnn: lb.Bayesian, optimizer: IVON, x: Tensor, y: Tensor, seed: int) -> None:
    optimizer.zero_grad()
    generator = torch.Generator().manual_seed(seed)
    lb.elbo(bnn, x, y, lb.Categorical(), n_data=12, with_kl=False, generator=generator).loss.backward()
    optimizer.step()


def test_a_restored_optimizer_goes_on_bit_for_bit() -> None:
    bnn, x, y = small_problem(propagate="mirrored")
    optimizer = IVON(bnn, n_data=12, steps=20)
    for seed in range(5):
        make_step(bnn, optimizer, x, y, seed)
    other = copy.deepcopy(bnn)
    resumed = IVON(other, n_data=12, steps=20)
    other.load_state_dict(bnn.state_dict())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for seed in range(5, 10):
        make_step(bnn, optimizer, x, y, seed)
        make_step(other, resumed, x, y, seed)
    for a, b in zip(bnn.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_the_rest_of_a_partly_random_tensor_is_trained_by_adam() -> None:
    bnn, x, y = small_problem(subspace=lb.random_k(0.3, seed=1), propagate="mirrored")
    plain = copy.deepcopy(bnn)
    optimizer = IVON(bnn, n_data=12, steps=20, plain_lr=1e-2)
    adam = torch.optim.Adam(plain.model.parameters(), lr=1e-2)
    plain.load_state_dict(bnn.state_dict())
    make_step(bnn, optimizer, x, y, 0)
    lb.elbo(
        plain, x, y, lb.Categorical(), n_data=12, with_kl=False, generator=torch.Generator().manual_seed(0)
    ).loss.backward()
    adam.step()
    for name, parts in bnn.parts():
        ours, theirs = (dict(m.model.named_parameters())[name].detach().flatten() for m in (bnn, plain))
        fixed = torch.ones_like(ours, dtype=torch.bool)
        fixed[parts.index.long()] = False
        assert torch.allclose(ours[fixed], theirs[fixed], atol=1e-7)
        assert not torch.allclose(ours[~fixed], theirs[~fixed], atol=1e-5)


def test_accumulated_draws_are_averaged() -> None:
    """Two backward passes of half a loss each give the mean of both gradients and both curvature estimates."""
    first, x, y = small_problem()
    second = copy.deepcopy(first)
    one, two = IVON(first, n_data=12, steps=20), IVON(second, n_data=12, steps=20)
    generator = torch.Generator().manual_seed(3)
    lb.elbo(first, x, y, lb.Categorical(), n_data=12, with_kl=False, samples=2, generator=generator).loss.backward()
    generator = torch.Generator().manual_seed(3)
    for _ in range(2):
        (lb.elbo(second, x, y, lb.Categorical(), n_data=12, with_kl=False, generator=generator).loss / 2).backward()
    one.step()
    two.step()
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_the_scales_are_those_of_q_and_the_summary_says_how_far_they_moved() -> None:
    bnn, x, y = small_problem()
    optimizer = IVON(bnn, n_data=12, steps=30, temperature=0.5)
    assert optimizer.summary().moved == pytest.approx(0, abs=1e-6)
    start = 1 / math.sqrt(24 * (0.1 + 1 / 24))
    assert optimizer.summary().start == pytest.approx(start, rel=1e-5)
    for seed in range(30):
        make_step(bnn, optimizer, x, y, seed)
    for _, parts in bnn.parts():
        q = (24 * (optimizer.state[parts.rho]["curvature"] + 1 / 24)).rsqrt()
        assert torch.allclose(F.softplus(parts.rho), q, rtol=1e-4)
    assert optimizer.summary().moved > 0.05


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: IVON(nn.Linear(2, 1), n_data=5, steps=3), "wrap the model"),
        (lambda: IVON(lb.Bayesian(nn.Linear(2, 1)), n_data=5), "steps="),
        (lambda: IVON(lb.Bayesian(nn.Linear(2, 1)), n_data=0, steps=3), "at least 1, got 0"),
        (lambda: IVON(lb.Bayesian(nn.Linear(2, 1)), lr=-1.0, n_data=5, steps=3), "lr must be a positive"),
        (lambda: IVON(lb.Bayesian(nn.Linear(2, 1)), n_data=5, beta2=1.0), "below 1, got 1.0"),
        (lambda: IVON(lb.Bayesian(nn.Linear(2, 1), posterior=lb.posteriors.Laplace(0.1)), n_data=5, steps=3), "Normal"),
        (
            lambda: IVON(lb.Bayesian(nn.Linear(2, 1), prior=lb.priors.FittedPrior()), n_data=5, steps=3),
            "stays as it is",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused(make: object, words: str) -> None:
    with pytest.raises(lb.errors.InputError, match=words):
        make()


def test_weight_decay_replaces_the_prior() -> None:
    bnn, _, _ = small_problem()
    IVON(bnn, n_data=50, steps=3, weight_decay=0.02)
    assert bnn.prior.scale.item() == pytest.approx(1.0)
    IVON(bnn, n_data=50, steps=3, weight_decay=0.08)
    assert bnn.prior.scale.item() == pytest.approx(0.5)
    assert torch.isfinite(bnn.kl())


@pytest.mark.parametrize("options", [{}, {"subspace": lb.random_k(0.3, seed=1)}], ids=["all", "partly"])
def test_fit_trains_by_name(options: dict[str, object], tmp_path: Path) -> None:
    """`fit` gives IVON the loss without the KL, its default learning rate, and all parameters of the likelihood."""
    bnn, _, _ = small_problem(propagate="mirrored", **options)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(96, 5, generator=generator)
    data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 1).long())
    loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
    history = lb.fit(bnn, loader, likelihood=lb.Categorical(), epochs=30, optimizer="ivon", checkpoint=tmp_path)
    assert history.epochs[-1].nll < 0.6 * history.epochs[0].nll
    spreads = torch.cat([weight.spread.detach().flatten() for weight in bnn.weights().values()])
    assert spreads.std() > 0.05 * spreads.mean()


def test_fit_needs_a_positive_kl_weight() -> None:
    bnn, x, y = small_problem()
    with pytest.raises(lb.errors.InputError, match="positive KL weight"):
        lb.fit(bnn, [(x, y)], likelihood=lb.Categorical(), epochs=1, optimizer="ivon", kl_weight=0.0)


def test_settings_reach_the_optimizer_and_are_the_same_in_another_process() -> None:
    """The text of the settings identifies a training in its checkpoint, so it may hold no address in memory."""
    bnn, x, y = small_problem()
    natural = lb.optim.NaturalGradients(temperature=0.25, plain_lr=1e-3)
    assert repr(natural) == repr(lb.optim.NaturalGradients(temperature=0.25, plain_lr=1e-3))
    assert "0x" not in repr(natural)
    problem = lb.optim.Problem(bnn, bnn.parameter_groups(), lr=0.1, weight_decay=0.0, n_data=12, steps=40)
    group = natural.build(problem).param_groups[0]
    assert (group["temperature"], group["plain_lr"], group["lr"], group["n_data"]) == (0.25, 1e-3, 0.1, 12)
    lb.fit(bnn, [(x, y)], likelihood=lb.Categorical(), epochs=2, optimizer=lb.Optimization(natural, lr=0.1))
