"""IVON against closed forms, quadrature and Hessians."""

import copy
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal as TorchNormal
from torch.optim.swa_utils import AveragedModel

import leanbayes as lb
from leanbayes.optim import IVON
from leanbayes.optim import ivon as ivon_module
from leanbayes.train.batches import mix
from tests.optim import ivon_script
from tests.optim.ivon_script import all_numbers

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
    for _ in range(1500):
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
    assert optimizer.summary().start == pytest.approx([start] * 5, rel=1e-5)
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
        (lambda: IVON(lb.Bayesian(nn.Linear(2, 1)), n_data=5, steps=3, kl_weight=0.0), "positive KL weight, got 0.0"),
        (lambda: IVON(lb.Bayesian(nn.Linear(2, 1)), n_data=5, steps=3, initial_scale=-0.1), "initial_scale must be a"),
        (
            lambda: IVON(lb.Bayesian(nn.Linear(2, 1)), n_data=5, steps=3, initial_scale=1.5),
            "initial_scale=1.5 and a prior of scale 1 for 'weight'; lower",
        ),
        (
            lambda: IVON(lb.Bayesian(nn.Linear(2, 1)), n_data=5, steps=3, initial_scale=0.1, initial_curvature=0.1),
            "got 0.1 and 0.1; leave one of them out",
        ),
        (lambda: lb.optim.NaturalGradients(initial_scale=0.1, initial_curvature=0.1), "leave one of them out"),
        (lambda: lb.optim.NaturalGradients(beta1=1.0), "below 1, got 1.0"),
        (lambda: lb.optim.NaturalGradients(temperature=0.0), "temperature must be a positive"),
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


@pytest.mark.parametrize("prior", [torch.distributions.Normal(0.0, 0.7), lb.priors.CentredPrior(0.2)])
def test_the_scales_start_where_the_user_wants_them(prior: object) -> None:
    """h₀ = 1/(λσ₀²) − δ gives σ₀, whatever λ and the prior are, and (h₀ + δ)/(h + δ) = 1 in the first step."""
    bnn, x, y = small_problem(prior=prior)
    bnn = bnn.double()
    before = [parameter.detach().clone() for parameter in bnn.model.parameters()]
    optimizer = IVON(bnn, 0.25, n_data=12, beta2=1 - 1e-12, beta1=0.0, temperature=0.3, initial_scale=0.05)
    for _, parts in bnn.parts():
        torch.testing.assert_close(F.softplus(parts.rho), torch.full_like(parts.rho, 0.05), rtol=1e-12, atol=0)
    assert optimizer.summary().end == pytest.approx([0.05] * 5)
    make_step(bnn, optimizer, x.double(), y, 0)
    decay, centre = (0.7**-2 / 40, 0.0) if isinstance(prior, torch.distributions.Normal) else (0.2**-2 / 40, None)
    for parameter, old in zip(bnn.model.parameters(), before, strict=True):
        gradient = parameter.grad + decay * (old - (old if centre is None else centre))
        torch.testing.assert_close(parameter.detach(), old - 0.25 * gradient, rtol=1e-9, atol=1e-12)


def test_the_initial_scale_holds_under_a_kl_weight() -> None:
    """`fit` tells the KL weight before the first draw: λ = n/(temperature · weight), so σ₀ is that of the user."""
    bnn, x, y = small_problem()
    natural = lb.optim.NaturalGradients(initial_scale=0.05, beta2=0.999)
    history = lb.fit(bnn, [(x, y)], likelihood=lb.Categorical(), epochs=1, optimizer=natural, kl_weight=0.01)
    assert history.scales.start == pytest.approx([0.05] * 5)
    assert history.scales.end == pytest.approx([0.05] * 5, rel=0.2)


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


class Given(lb.posteriors.Normal):
    """A Normal posterior whose noise is one given number."""

    value: ClassVar[float] = 0.0

    def noise(self, like: Tensor, samples: int | None, generator: torch.Generator | None) -> Tensor:
        return torch.full_like(like, Given.value).detach()


class OneWeight(lb.subspace.Subspace):
    """One coordinate of the first layer is random."""

    eligible = staticmethod(lambda slot: True)

    def __init__(self, place: int) -> None:
        self.place = place

    def choose(self, pool: list[object]) -> dict[str, Tensor]:
        return {"0.weight": torch.tensor([self.place], dtype=torch.int32)}


@pytest.mark.parametrize("norm", [False, True], ids=["without batch norm", "with batch norm"])
@pytest.mark.parametrize("propagate", ["sample", "mirrored"])
def test_what_the_estimate_expects_under_batch_norm(propagate: str, norm: bool) -> None:
    """The mean of the estimate over one random weight, by Gauss-Hermite quadrature, against second derivatives.

    L(w₁, w₂) is the loss of a batch whose halves see the weights w₁ and w₂. One draw for the batch expects
    E[L₁₁ + L₂₂ + 2L₁₂], and mirrored draws expect E[L₁₁ + L₂₂ − 2L₁₂]. L₁₂ is 0 without batch norm alone.
    """
    torch.manual_seed(8)
    x, y, scale, place = torch.randn(10, 3).double(), torch.randint(0, 3, (10,)), 0.1, 4
    layers = [nn.Linear(3, 4), *([nn.BatchNorm1d(4)] if norm else []), nn.Tanh(), nn.Linear(4, 3)]
    model = nn.Sequential(*layers).double()
    bnn = lb.Bayesian(model, subspace=OneWeight(place), posterior=Given(scale), propagate=propagate)
    (tensor,) = lb.optim.random_tensors(bnn)

    def loss(first: Tensor, second: Tensor) -> Tensor:
        """L for the values of the random weight in both halves."""
        halves = []
        for rows, value in ((x[:5], first), (x[5:], second)):
            flat = model[0].weight.detach().flatten().clone()
            weight = torch.cat([flat[:place], value.view(1), flat[place + 1 :]]).view(4, 3)
            halves.append(F.linear(rows, weight, model[0].bias))
        hidden = torch.cat(halves)
        for layer in model[1:]:
            hidden = layer(hidden)
        return F.cross_entropy(hidden, y)

    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    estimate = expected = coupling = 0.0
    for node, weight in zip(nodes, weights / math.sqrt(2 * math.pi), strict=True):
        bnn.zero_grad()
        Given.value = float(node)
        F.cross_entropy(bnn(x), y).backward()
        estimate += weight * float(tensor.scale_gradient() / tensor.scale())
        mean = model[0].weight.detach().flatten()[place]
        sign = 1.0 if propagate == "sample" else -1.0
        point = (mean + scale * node, mean + sign * scale * node)
        hessian = torch.autograd.functional.hessian(loss, point)
        expected += weight * float(hessian[0][0] + hessian[1][1] + 2 * sign * hessian[0][1])
        coupling += weight * float(hessian[0][1])
    assert estimate == pytest.approx(expected, rel=1e-6)
    assert (abs(coupling) > 0.02 * abs(expected)) if norm else (abs(coupling) < 1e-12)


def numbers(bnn: lb.Bayesian, optimizer: IVON) -> list[Tensor]:
    return [value.clone() for value in all_numbers(bnn, optimizer)]


def assert_scales_are_those_of_q(optimizer: IVON, precision: float = 1.0) -> None:
    group = optimizer.param_groups[0]
    size = group["n_data"] / (group["temperature"] * group["kl_weight"])
    for tensor in lb.optim.random_tensors(optimizer._bnn):
        q = (size * optimizer.state[tensor.rho]["curvature"] + precision).rsqrt()
        torch.testing.assert_close(tensor.scale(), q, rtol=1e-4, atol=0)


def test_parts_of_unequal_sizes_add_up_in_fit() -> None:
    """A batch of 7 in 3 parts: each part has its own draw and the weight of its share, and one step follows."""
    bnn, x, y = small_problem()
    other = copy.deepcopy(bnn)
    one, two = (IVON(model, 0.1, n_data=7, beta2=0.9, initial_scale=0.1) for model in (bnn, other))
    how = lb.Optimization(one, micro_batches=3, hold_statistics=False)
    lb.fit(bnn, [(x[:7], y[:7])], likelihood=lb.Categorical(), epochs=1, optimizer=how, seed=4)
    other.train()
    for part, rows in enumerate((slice(0, 2), slice(2, 4), slice(4, 7))):
        noise = torch.Generator().manual_seed(mix(4, "noise", 0, part))
        loss = lb.elbo(other, x[rows], y[rows], lb.Categorical(), n_data=7, with_kl=False, generator=noise).loss
        (loss * len(x[rows]) / 7).backward()
    two.step()
    for a, b in zip(numbers(bnn, one), numbers(other, two), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_a_gradient_scaler_changes_nothing_and_leaves_out_spoiled_steps() -> None:
    """A factor of 2¹⁰ is exact in floating point, so the unscaled gradients are the same bit for bit."""
    plain, x, y = small_problem(propagate="mirrored")
    scaled = copy.deepcopy(plain)
    one, two = (IVON(model, n_data=12, steps=20, initial_scale=0.1) for model in (plain, scaled))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)
    for seed in range(3):
        make_step(plain, one, x, y, seed)
        two.zero_grad()
        noise = torch.Generator().manual_seed(seed)
        loss = lb.elbo(scaled, x, y, lb.Categorical(), n_data=12, with_kl=False, generator=noise).loss
        scaler.scale(loss).backward()
        scaler.step(two)
        scaler.update()
    for a, b in zip(numbers(plain, one), numbers(scaled, two), strict=True):
        assert torch.equal(a, b)
    before = numbers(scaled, two)
    rho = next(scaled.parts())[1].rho
    two.zero_grad()
    scaler.scale(lb.elbo(scaled, x, y, lb.Categorical(), n_data=12, with_kl=False).loss).backward()
    rho.grad.view(-1)[3] = torch.inf
    scaler.step(two)
    scaler.update()
    assert scaler.get_scale() < 2.0**10
    assert all(torch.equal(a, b) for a, b in zip(before, numbers(scaled, two), strict=True))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("of_scale", [True, False], ids=["scale", "mean"])
def test_gradients_that_are_not_finite_change_nothing(bad: float, of_scale: bool) -> None:
    bnn, x, y = small_problem(subspace=lb.random_k(0.5, seed=1))
    optimizer = IVON(bnn, n_data=12, steps=20, initial_scale=0.1)
    make_step(bnn, optimizer, x, y, 0)
    before = numbers(bnn, optimizer)
    parameter = next(bnn.parts())[1].rho if of_scale else bnn.model[3].weight
    parameter.grad.view(-1)[2] = bad
    name = "the scale of 0.weight" if of_scale else "3.weight"
    with pytest.raises(lb.errors.NonFinite, match=f"gradient of {name} has NaN or inf.*changed nothing"):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, numbers(bnn, optimizer), strict=True))
    parameter.grad.zero_()
    bnn.model[0].bias.grad.fill_(3e38)  # the sum overflows, and each number is finite
    optimizer.step()


def test_fit_says_where_a_gradient_was_not_finite() -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2, 2))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight + (self.weight * 0).square().sum().sqrt()  # the slope of √ at 0 is infinite

    bnn = lb.Bayesian(Root())
    with pytest.raises(lb.errors.NonFinite, match=r"step 0, epoch 0.*the gradient of .*weight has NaN"):
        lb.fit(
            bnn, [(torch.ones(4, 2), torch.zeros(4).long())], likelihood=lb.Categorical(), epochs=1, optimizer="ivon"
        )


def test_mixed_precision_keeps_weights_and_curvature_in_float32() -> None:
    bnn, x, y = small_problem(propagate="mirrored")
    optimizer = IVON(bnn, 0.5, n_data=12, steps=30, initial_scale=0.05)
    losses = []
    for seed in range(30):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            noise = torch.Generator().manual_seed(seed)
            loss = lb.elbo(bnn, x, y, lb.Categorical(), n_data=12, with_kl=False, generator=noise).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    assert all(value.dtype == torch.float32 for value in bnn.parameters())
    assert all(optimizer.state[parts.rho]["curvature"].dtype == torch.float32 for _, parts in bnn.parts())
    assert_scales_are_those_of_q(optimizer)
    with pytest.raises(lb.errors.InputError, match=r"bfloat16.*torch.autocast"):
        IVON(lb.Bayesian(nn.Linear(2, 2)).bfloat16(), n_data=5, steps=3)


def test_clipping_in_fit_limits_the_means_and_leaves_the_curvature_alone() -> None:
    ends = []
    for clip in (None, 1e-3):
        bnn, x, y = small_problem(propagate="mirrored")
        optimizer = IVON(bnn, 0.1, n_data=12, beta2=0.9, initial_scale=0.1)
        how = lb.Optimization(optimizer, clip=clip)
        lb.fit(bnn, [(x, y)], likelihood=lb.Categorical(), epochs=1, optimizer=how)
        ends.append([optimizer.state[parts.rho] for _, parts in bnn.parts()])
    for free, clipped in zip(*ends, strict=True):
        assert torch.equal(free["curvature"], clipped["curvature"])
    # All weights of the model are random, so the momenta are (1 − β₁) times all gradients that were clipped.
    norm = torch.cat([state["momentum"].flatten() for state in ends[1]]).norm() / 0.1
    assert norm.item() == pytest.approx(1e-3, rel=1e-3)
    assert torch.cat([state["momentum"].flatten() for state in ends[0]]).norm() / 0.1 > 0.01


def test_clip_limits_each_coordinate_of_the_step() -> None:
    steps = []
    for clip in (None, 0.05):
        bnn, x, y = small_problem()
        optimizer = IVON(bnn, 0.1, n_data=12, beta2=0.9, initial_scale=0.1, clip=clip)
        before = [parameter.detach().clone() for parameter in bnn.model.parameters()]
        make_step(bnn, optimizer, x, y, 0)
        moves = [old - new.detach() for old, new in zip(before, bnn.model.parameters(), strict=True)]
        steps.append(torch.cat([move.flatten() for move in moves]))
    torch.testing.assert_close(steps[1], steps[0].clamp(-0.005, 0.005), rtol=1e-3, atol=1e-7)
    assert steps[0].abs().max() > 0.01


def test_two_processes_make_the_steps_of_one(tmp_path: Path) -> None:
    """DDP averages both gradients, so ĝ and ĥ are those of the whole batch with the draws of its two halves."""
    script = Path(__file__).with_name("ivon_script.py")
    processes = [
        subprocess.Popen([sys.executable, str(script), str(rank), str(tmp_path)], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    first, second = (torch.load(tmp_path / f"trained{rank}") for rank in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    bnn, x, y = ivon_script.problem()
    optimizer = ivon_script.optimizer_of(bnn)
    for step in range(ivon_script.STEPS):
        optimizer.zero_grad()
        for part in range(2):
            rows = slice(4 * part, 4 * part + 4)
            ivon_script.backward(bnn, x[rows], y[rows], step, part, 0.5)
        optimizer.step()
    for ours, theirs in zip(numbers(bnn, optimizer), first, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("moment", ["forward", "backward", "closure"])
def test_an_error_before_the_update_changes_nothing(moment: str, error: type[BaseException]) -> None:
    bnn, x, y = small_problem(propagate="mirrored", subspace=lb.random_k(0.5, seed=1))
    optimizer = IVON(bnn, n_data=12, steps=20, initial_scale=0.1)
    untouched = copy.deepcopy(bnn)
    reference = IVON(untouched, n_data=12, steps=20, initial_scale=0.1)
    before = numbers(bnn, optimizer)

    def stop(*_: object) -> None:
        raise error

    forward = bnn.model[2].register_forward_hook(stop) if moment == "forward" else None
    backward = bnn.model[2].register_full_backward_hook(stop) if moment == "backward" else None

    def closure() -> Tensor:
        loss = lb.elbo(bnn, x, y, lb.Categorical(), n_data=12, with_kl=False).loss
        loss.backward()
        if moment == "closure":
            stop()
        return loss

    buffers = copy.deepcopy(dict(bnn.named_buffers()))
    with pytest.raises(error):
        optimizer.step(closure)
    for hook in (forward, backward):
        if hook is not None:
            hook.remove()
    assert all(torch.equal(a, b) for a, b in zip(before, numbers(bnn, optimizer), strict=True))
    for name, buffer in bnn.named_buffers():  # the statistics of batch norm belong to the forward pass
        buffer.copy_(buffers[name])
    make_step(bnn, optimizer, x, y, 1)
    make_step(untouched, reference, x, y, 1)
    for a, b in zip(numbers(bnn, optimizer), numbers(untouched, reference), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("moment", [1, 2, 3])
def test_an_interrupt_within_the_update_leaves_the_scales_of_q(moment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupt comes in the middle of a sweep, when the curvature has changed and the scales have not."""
    bnn, x, y = small_problem(
        subspace=lb.random_k(0.5, seed=1), prior={"0.*": TorchNormal(0, 0.9), "*": TorchNormal(0, 1)}
    )
    optimizer = IVON(bnn, n_data=12, steps=20, initial_scale=0.1)
    make_step(bnn, optimizer, x, y, 0)
    calls: list[str] = []

    def interrupted(name: str) -> object:
        original = getattr(ivon_module, name)

        def sweep(*args: object) -> None:
            calls.append(name)
            if len(calls) == moment:
                if name == "natural_sweep":
                    args[1][0].add_(0.7)  # the curvature
                raise KeyboardInterrupt
            original(*args)

        return sweep

    for name in ("natural_sweep", "adam_sweep"):  # two priors make two sweeps, and Adam makes the third
        monkeypatch.setattr(ivon_module, name, interrupted(name))
    before = {name: value.detach().clone() for name, value in bnn.model.named_parameters()}
    with pytest.raises(KeyboardInterrupt):
        make_step(bnn, optimizer, x, y, 1)
    monkeypatch.undo()
    size = 12
    for target in optimizer._targets:
        q = (size * optimizer.state[target.tensor.rho]["curvature"] + target.precision).rsqrt()
        torch.testing.assert_close(target.tensor.scale(), q, rtol=1e-5, atol=0)
    if moment == 1:  # nothing was updated before the interrupt
        assert all(torch.equal(before[name], value) for name, value in bnn.model.named_parameters())
    assert len(calls) == moment
    make_step(bnn, optimizer, x, y, 2)
    assert all(torch.isfinite(value).all() for value in bnn.parameters())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_data": 13}, "n_data=13, and the state that is loaded has 12"),
        ({"temperature": 0.5}, "temperature=0.5"),
        ({"initial_scale": 0.2}, "initial_scale=0.2"),
        ({"weight_decay": 0.3}, "prior_precisions="),
    ],
)
def test_a_state_of_other_settings_is_refused(change: dict[str, float], words: str) -> None:
    settings = {"n_data": 12, "steps": 20, "initial_scale": 0.1}
    bnn, x, y = small_problem()
    optimizer = IVON(bnn, **settings)
    make_step(bnn, optimizer, x, y, 0)
    saved = copy.deepcopy(optimizer.state_dict())
    other = IVON(small_problem()[0], **(settings | change))
    with pytest.raises(lb.errors.InputError, match=re.escape(words)):
        other.load_state_dict(saved)
    wider = IVON(lb.Bayesian(nn.Sequential(nn.Linear(5, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 3))), **settings)
    with pytest.raises(lb.errors.InputError, match=r"shape \(8, 5\).*shape \(9, 5\).*another model"):
        wider.load_state_dict(saved)
    double = IVON(small_problem()[0].double(), **settings)
    with pytest.raises(lb.errors.InputError, match=r"float32.*float64"):
        double.load_state_dict(saved)
    with pytest.raises(ValueError, match="group"):
        IVON(small_problem()[0], lr={"0.*": 0.1, "*": 0.2}, **settings).load_state_dict(saved)
    rates = IVON(small_problem()[0], 0.125, **settings)
    rates.load_state_dict(saved)  # as in torch, the learning rate of the state counts
    assert rates.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
    assert rates.state[rates.param_groups[-1]["params"][0]]["step"] == 1


class Tied(nn.Module):
    """One weight under two names, used twice in a pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


@pytest.mark.parametrize("propagate", ["sample", "mirrored"])
def test_a_tied_weight_makes_one_step_with_the_sum_of_its_gradients(propagate: str) -> None:
    torch.manual_seed(9)
    bnn = lb.Bayesian(Tied().double(), propagate=propagate)
    before = bnn.model.first.weight.detach().clone()
    optimizer = IVON(bnn, 0.5, n_data=8, beta1=0.0, beta2=0.9, initial_scale=0.2)
    (tensor,) = lb.optim.random_tensors(bnn)
    x, y = torch.randn(8, 3).double(), torch.randint(3, (8,))
    make_step(bnn, optimizer, x, y, 3)
    assert bnn.model.first.weight is bnn.model.second.weight
    assert optimizer.state[tensor.rho]["step"] == 1
    size, slope = 8, 1 - math.exp(-0.2)
    start, decay = 1 / (size * 0.04) - 1 / size, 1 / size
    change = 0.1 * (tensor.rho.grad / slope / 0.2 - start)
    precision = 0.2**-2 / size + change + 0.5 * change.square() / (0.2**-2 / size)
    step = 0.5 * (0.2**-2 / size) * (tensor.mean.grad + decay * before) / precision
    torch.testing.assert_close(bnn.model.first.weight.detach(), before - step, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(tensor.scale(), (size * precision).rsqrt(), rtol=1e-9, atol=0)


def test_wrapped_models() -> None:
    """The optimizer finds the `Bayesian` inside, and an average of models stays as it is."""
    bnn, x, y = small_problem(propagate="mirrored")
    twin = copy.deepcopy(bnn)
    compiled = torch.compile(twin, backend="eager")
    average = AveragedModel(bnn)
    start = [parameter.detach().clone() for parameter in average.parameters()]
    one, two = (IVON(model, n_data=12, steps=20, initial_scale=0.1) for model in (bnn, compiled))
    for seed in range(2):
        make_step(bnn, one, x, y, seed)
        make_step(compiled, two, x, y, seed)
    for a, b in zip(numbers(bnn, one), numbers(twin, two), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
    assert all(torch.equal(a, b) for a, b in zip(start, average.parameters(), strict=True))
    average.update_parameters(bnn)
    average.update_parameters(bnn)
    for a, b in zip(average.module.parameters(), bnn.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert torch.isfinite(lb.predict(average.eval(), x, likelihood=lb.Categorical()).mean).all()


@pytest.mark.parametrize("early", [True, False], ids=["before IVON", "after IVON"])
def test_frozen_means_stay_and_their_scales_follow_the_curvature(early: bool) -> None:
    bnn, x, y = small_problem()
    if early:
        bnn.model[0].requires_grad_(False)
    optimizer = IVON(bnn, n_data=12, steps=20, initial_scale=0.1)
    bnn.model[0].requires_grad_(False)
    before = bnn.model[0].weight.detach().clone()
    for seed in range(3):
        make_step(bnn, optimizer, x, y, seed)
    (tensor, *_) = lb.optim.random_tensors(bnn)
    assert torch.equal(bnn.model[0].weight, before)
    assert (tensor.scale() - 0.1).abs().max() > 1e-3
    assert_scales_are_those_of_q(optimizer)


def test_frozen_scales_and_passes_at_the_mean() -> None:
    """A random tensor whose scale is frozen is trained by Adam; a loss at the mean says nothing of the curvature."""
    bnn, x, y = small_problem()
    (name, parts), *_ = bnn.parts()
    assert name == "0.weight"
    parts.rho.requires_grad_(False)
    raw = parts.rho.detach().clone()
    optimizer = IVON(bnn, n_data=12, steps=20, initial_scale=0.1, plain_lr=0.01)
    before = bnn.model[0].weight.detach().clone()
    make_step(bnn, optimizer, x, y, 0)
    assert torch.equal(parts.rho, raw)
    torch.testing.assert_close((bnn.model[0].weight - before).abs(), torch.full_like(before, 0.01), rtol=1e-3, atol=0)
    scales = [tensor.scale().clone() for tensor in lb.optim.random_tensors(bnn)]
    head = bnn.model[3].weight.detach().clone()
    optimizer.zero_grad()
    with bnn.at_mean():
        F.cross_entropy(bnn(x), y).backward()
    optimizer.step()
    assert not torch.equal(bnn.model[3].weight, head)
    for tensor, scale in zip(lb.optim.random_tensors(bnn), scales, strict=True):
        torch.testing.assert_close(tensor.scale(), scale, rtol=1e-5, atol=0)


def test_groups_have_their_own_learning_rates() -> None:
    """With β₂ = 0.9 and one step, the move of each tensor is proportional to its learning rate."""
    moves = {}
    for key, lr in {"both": {"0.*": 0.2, "*": 0.05}, "0": 0.2, "rest": 0.05}.items():
        bnn, x, y = small_problem()
        before = {name: value.detach().clone() for name, value in bnn.model.named_parameters()}
        optimizer = IVON(bnn, lr, n_data=12, beta2=0.9, initial_scale=0.1)
        make_step(bnn, optimizer, x, y, 0)
        moves[key] = {name: value.detach() - before[name] for name, value in bnn.model.named_parameters()}
    for name, move in moves["both"].items():
        assert torch.equal(move, moves["0" if name.startswith("0.") else "rest"][name])
    assert len(optimizer.param_groups) == 2
    with pytest.raises(lb.errors.SelectionError, match="add '\\*' as the last"):
        IVON(bnn, {"0.*": 0.2}, n_data=12, steps=3)
    with pytest.raises(lb.errors.SelectionError, match="'9' of the learning rates matches no"):
        IVON(bnn, {"9": 0.2, "*": 0.1}, n_data=12, steps=3)


def test_a_group_that_is_added_later_is_trained_by_adam() -> None:
    bnn, x, y = small_problem()
    optimizer = IVON(bnn, n_data=12, steps=20, initial_scale=0.1, plain_lr=0.01)
    gain = nn.Parameter(torch.ones(3))
    optimizer.add_param_group({"params": [gain]})
    loss = optimizer.step(lambda: _backward(F.cross_entropy(bnn(x) * gain, y)))
    assert loss.requires_grad
    torch.testing.assert_close((gain - 1).abs(), torch.full((3,), 0.01), rtol=1e-3, atol=0)


def _backward(loss: Tensor) -> Tensor:
    loss.backward()
    return loss


def test_sparse_weights_that_come_keep_the_scale_that_they_came_with(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(10)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    bnn = lb.Bayesian(model, subspace=lb.sparse(0.5, dense=()), propagate="local")
    optimizer = IVON(bnn, 0.1, n_data=24, beta2=0.99, initial_scale=0.1)
    moved: list[int] = []
    adopt = IVON.adopt_scales

    def watched(self: IVON, rho: Tensor, changed: Tensor) -> None:
        adopt(self, rho, changed)
        state = self.state[rho]
        q = (24 * state["curvature"] + 1).rsqrt()
        torch.testing.assert_close(F.softplus(rho), q, rtol=1e-4, atol=0)
        torch.testing.assert_close(F.softplus(rho)[changed], torch.full_like(rho[changed], 0.03), rtol=1e-4, atol=0)
        assert not state["momentum"][changed].any()
        moved.append(int(changed.sum()))

    monkeypatch.setattr(IVON, "adopt_scales", watched)
    x = torch.randn(24, 5)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    data = [(x[:12], y[:12]), (x[12:], y[12:])]
    how = lb.Rewire(every=3, new_scale=0.03)
    history = lb.fit(bnn, data, likelihood=lb.Categorical(), epochs=8, optimizer=optimizer, rewire=how)
    assert sum(moved) > 0
    assert_scales_are_those_of_q(optimizer)
    assert history.scales.end[4] < 0.3  # a curvature of 0 would have given the scale of the prior, 1


def test_double_precision_and_empty_tensors() -> None:
    class WithEmpty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.empty = nn.Linear(3, 2), nn.Parameter(torch.zeros(0, 2))

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) + self.empty.sum(0)

    bnn = lb.Bayesian(WithEmpty().double())
    optimizer = IVON(bnn, n_data=4, steps=20, initial_scale=0.1)
    make_step(bnn, optimizer, torch.randn(4, 3).double(), torch.tensor([0, 1, 0, 1]), 0)
    assert all(value.dtype == torch.float64 for value in numbers(bnn, optimizer))
    assert optimizer.summary().moved > 0
    assert_scales_are_those_of_q(optimizer)


def test_the_newest_of_two_optimizers_owns_the_scales() -> None:
    bnn, x, y = small_problem()
    older = IVON(bnn, n_data=12, steps=20, initial_scale=0.1)
    newer = IVON(bnn, n_data=12, steps=20, initial_scale=0.05)
    before = numbers(bnn, newer)
    with pytest.raises(lb.errors.InputError, match="a newer IVON was built for this model"):
        make_step(bnn, older, x, y, 0)
    assert all(torch.equal(a, b) for a, b in zip(before, numbers(bnn, newer), strict=True))
    make_step(bnn, newer, x, y, 0)
    copied = copy.deepcopy(bnn)
    make_step(bnn, newer, x, y, 1)  # a copy of the model takes nothing over
    make_step(copied, IVON(copied, n_data=12, steps=20), x, y, 1)


def test_weights_in_another_order_of_memory() -> None:
    """Convolutions in channels_last make the same steps as contiguous ones, whole and in part."""
    for subspace in (lb.everything(), lb.random_k(0.5, seed=2)):
        ends = []
        for layout in (torch.contiguous_format, torch.channels_last):
            torch.manual_seed(11)
            model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
            bnn = lb.Bayesian(model.to(memory_format=layout).double(), subspace=subspace)
            optimizer = IVON(bnn, 0.1, n_data=12, steps=20, initial_scale=0.1)
            x = torch.randn(6, 3, 4, 4).double()
            for seed in range(2):
                make_step(bnn, optimizer, x, torch.tensor([0, 1, 2, 0, 1, 2]), seed)
            ends.append(numbers(bnn, optimizer))
        for a, b in zip(*ends, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_a_curvature_that_halves_again_and_again_stays_finite() -> None:
    """ĥ = h − (h + δ)/ρ makes h + δ half of what it was in every step, until float32 cannot tell h from −δ."""
    bnn = lb.Bayesian(nn.Linear(3, 2, bias=False))
    optimizer = IVON(bnn, lr=1e-6, n_data=50, beta2=0.5)
    (_, parts), decay = next(bnn.parts()), 1 / 50
    for _ in range(100):
        h = optimizer.state[parts.rho]["curvature"]
        scale = F.softplus(parts.rho.detach())
        parts.rho.grad = (h - (h + decay) / 0.5) * scale * torch.sigmoid(parts.rho.detach())
        bnn.model.weight.grad = torch.full((2, 3), 1e-3)
        optimizer.step()
        assert torch.isfinite(parts.rho).all()
        assert torch.isfinite(bnn.model.weight).all()


def test_sparse_gradients_are_refused() -> None:
    bnn = lb.Bayesian(nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 2)), subspace=lb.layers("1"))
    optimizer = IVON(bnn, n_data=5, steps=3, initial_scale=0.1)
    bnn(torch.tensor([0, 1])).sum().backward()
    with pytest.raises(lb.errors.InputError, match=r"that of 0.weight is sparse; use sparse=False"):
        optimizer.step()


@pytest.mark.parametrize("prior", [TorchNormal(0.25, 0.5), lb.priors.CentredPrior(0.5)])
@pytest.mark.parametrize("subspace", [lb.everything(), lb.random_k(0.4, seed=1)])
def test_means_by_adam_follow_the_gradient_of_the_objective(prior: object, subspace: object) -> None:
    """Adam of torch on the same gradients, with that of the prior, (m − m₀)/(λs²), for random coordinates."""
    bnn, x, y = small_problem(prior=prior, subspace=subspace, propagate="mirrored")
    bnn, x = bnn.double(), x.double()  # Adam turns gradients near 0, which are noise in float32, into whole steps
    start = {name: value.detach().clone() for name, value in bnn.model.named_parameters()}
    optimizer = IVON(bnn, 0.01, n_data=12, temperature=0.5, steps=20, means="adam")
    plain = copy.deepcopy(bnn)
    adam = torch.optim.Adam(plain.model.parameters(), lr=0.01)
    for seed in range(3):
        make_step(bnn, optimizer, x, y, seed)
        plain.zero_grad()
        generator = torch.Generator().manual_seed(seed)
        loss = lb.elbo(plain, x, y, lb.Categorical(), n_data=12, with_kl=False, generator=generator).loss
        loss.backward()
        theirs = dict(plain.model.named_parameters())
        with torch.no_grad():
            for name, parts in plain.parts():
                centre = torch.full_like(start[name], 0.25) if isinstance(prior, TorchNormal) else start[name]
                pull = (theirs[name] - centre) / (24 * 0.25)
                random = torch.ones(pull.numel(), dtype=torch.bool)
                if parts.index is not None:
                    random = torch.zeros_like(random).index_fill(0, parts.index.long(), value=True)
                theirs[name].grad += torch.where(random.view(pull.shape), pull, 0.0)
        adam.step()
        for (name, ours), (_, scales) in zip(bnn.model.named_parameters(), plain.parts(), strict=True):
            torch.testing.assert_close(ours, theirs[name], rtol=1e-10, atol=1e-10)
            scales.rho.data.copy_(dict(bnn.parts())[name].rho)
    assert_scales_are_those_of_q(optimizer, precision=4.0)


def test_means_by_adam_recover_the_posterior_of_linear_regression() -> None:
    x, y = linear_data()
    precision = x.T @ x / NOISE**2 + torch.eye(D, dtype=torch.float64) / PRIOR**2
    mean, scale = torch.linalg.solve(precision, x.T @ y / NOISE**2)[:, 0], precision.diagonal().rsqrt()
    bnn, steps = linear_model("moments"), 2000
    optimizer = IVON(bnn, 0.05, n_data=N, steps=steps, beta2=0.98, means="adam")
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        lb.elbo(bnn, x, y, lb.Gaussian(noise=NOISE), n_data=N, with_kl=False).loss.backward()
        optimizer.step()
        schedule.step()
    weight = bnn.weights()["weight"]
    assert torch.allclose(weight.spread.detach().flatten(), scale, rtol=1e-6)
    assert ((weight.mean.detach().flatten() - mean).abs() / scale).max() < 1e-4


def test_settings_of_means_by_adam_are_checked() -> None:
    with pytest.raises(lb.errors.InputError, match="means must be one of"):
        lb.optim.NaturalGradients(means="sgd")
    with pytest.raises(lb.errors.InputError, match=r"takes none; got clip=1\.0"):
        lb.optim.NaturalGradients(means="adam", clip=1.0)
    assert lb.optim.NaturalGradients(means="adam").default_lr == 2e-3
    assert lb.optim.NaturalGradients().default_lr == 0.5


def test_without_numba_a_step_with_adam_is_the_same_up_to_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of the whole step serves a model of this size, and must not be asked for where numba is missing."""
    pytest.importorskip("numba")
    ends = []
    for numba in (True, False):
        monkeypatch.setattr("leanbayes._ops.compiled.available", lambda there=numba: there)
        if not numba:
            monkeypatch.setattr("leanbayes.optim.ivon.fused_sweep", lambda rows: pytest.fail(f"asked for {len(rows)}"))
        torch.manual_seed(0)
        bnn = lb.Bayesian(nn.Linear(200, 100), propagate="mirrored")
        optimizer = lb.optim.IVON(bnn, n_data=100, steps=4, means="adam", average=0.5)
        for _ in range(4):
            optimizer.zero_grad()
            bnn(torch.ones(4, 200)).square().mean().backward()
            optimizer.step()
        optimizer.use_averages()
        ends.append([parameter.detach() for parameter in bnn.parameters()])
    for kernel, plain in zip(*ends, strict=True):
        torch.testing.assert_close(kernel, plain, rtol=1e-4, atol=1e-5)
