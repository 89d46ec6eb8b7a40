"""The likelihood of numbers against torch.distributions in float64, and against draws that are all kept."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import leanbayes as lb
from leanbayes.likelihood import Uncertainty
from tests.likelihood.cases import from_draws, normal


def gaussian_cases() -> list[tuple[str, Callable[[], tuple[lb.Gaussian, object, Tensor, Tensor]]]]:
    """Name, and a maker of (likelihood, output, means, standard deviations)."""

    def known() -> tuple[lb.Gaussian, object, Tensor, Tensor]:
        mean = normal(6, 2)
        return lb.Gaussian(0.3), mean, mean, torch.full_like(mean, 0.3)

    def learned() -> tuple[lb.Gaussian, object, Tensor, Tensor]:
        mean, likelihood = normal(6, 2), lb.Gaussian("learned", initial=2.0).double()
        with torch.no_grad():
            likelihood.log_variance.fill_(-0.8)
        return likelihood, mean, mean, torch.full_like(mean, math.exp(-0.4))

    def pair() -> tuple[lb.Gaussian, object, Tensor, Tensor]:
        mean, log_variance = normal(6, 2), normal(6, 2)
        return lb.Gaussian("input"), (mean, log_variance), mean, torch.exp(log_variance / 2)

    def channels() -> tuple[lb.Gaussian, object, Tensor, Tensor]:
        mean, log_variance = normal(6, 2, 3), normal(6, 2, 3)
        return lb.Gaussian("input"), torch.cat([mean, log_variance], 1), mean, torch.exp(log_variance / 2)

    return [("known", known), ("learned", learned), ("pair", pair), ("channels", channels)]


@pytest.mark.parametrize(("name", "make"), gaussian_cases(), ids=[name for name, _ in gaussian_cases()])
def test_gaussian_nll_is_that_of_torch_distributions(name: str, make: Callable[[], tuple]) -> None:
    likelihood, output, mean, std = make()
    target = normal(*mean.shape)
    expected = -torch.distributions.Normal(mean, std).log_prob(target).sum()
    torch.testing.assert_close(likelihood.nll(output, target), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(likelihood.predictive(output), mean)


def test_known_noise_is_the_number_given() -> None:
    assert lb.Gaussian(0.25).noise.item() == pytest.approx(0.25, rel=1e-6)
    assert list(lb.Gaussian(0.25).parameters()) == []
    assert len(list(lb.Gaussian("learned").parameters())) == 1
    assert lb.Gaussian("learned", initial=3.0).noise.item() == pytest.approx(3.0, rel=1e-6)


def test_gaussian_uncertainty_is_that_of_the_stacked_draws() -> None:
    """Far from the origin, where E[m²] − E[m]² would have lost every digit in float32."""
    means, logs = [1e4 + normal(5, 2).float() for _ in range(11)], [normal(5, 2).float() for _ in range(11)]
    result = from_draws(lb.Gaussian("input"), list(zip(means, logs, strict=True)))
    stacked = torch.stack(means).double().numpy()
    np.testing.assert_allclose(result.mean, stacked.mean(0), rtol=1e-7)
    np.testing.assert_allclose(result.epistemic, stacked.var(0, ddof=1), rtol=1e-4)
    np.testing.assert_allclose(result.aleatoric, torch.stack(logs).exp().mean(0), rtol=1e-5)
    np.testing.assert_allclose(result.total, result.aleatoric + result.epistemic, rtol=1e-6)


def test_gaussian_variance_is_unbiased() -> None:
    outputs = [normal(4, 2) for _ in range(3)]
    result = from_draws(lb.Gaussian(0.5).double(), outputs)
    np.testing.assert_allclose(result.epistemic, np.var(torch.stack(outputs).numpy(), axis=0, ddof=1), rtol=1e-12)
    np.testing.assert_allclose(result.aleatoric, 0.25, rtol=1e-6)


def test_one_draw_has_no_spread_and_each_input_its_own_count() -> None:
    assert (from_draws(lb.Gaussian(1.0).double(), [normal(4, 2)]).epistemic == 0).all()
    likelihood, centre = lb.Gaussian(1.0).double(), torch.zeros(2, 1, dtype=torch.float64)
    draws = [torch.tensor([1.0, 2.0]).double(), torch.tensor([3.0, 7.0, -1.0, 4.0]).double()]
    averages = torch.stack(
        [torch.stack([d.mean(), d.square().mean(), torch.ones(()).double()]).view(3, 1) for d in draws]
    )
    result = likelihood.uncertainty(averages, torch.tensor([2, 4]), centre)
    np.testing.assert_allclose(result.epistemic[:, 0], [d.var().item() for d in draws], rtol=1e-12)


def test_nats_of_a_variance_are_half_its_logarithm() -> None:
    result = Uncertainty(*[torch.tensor([4.0])] * 4)
    assert lb.Gaussian(1.0).nats(result).item() == pytest.approx(math.log(2))
    assert lb.Categorical().nats(result).item() == 4


def test_learned_noise_finds_the_true_standard_deviation() -> None:
    likelihood, true = lb.Gaussian("learned", initial=5.0).double(), 0.35
    target = true * normal(4000, 1)
    optimizer = torch.optim.Adam(likelihood.parameters(), lr=0.1)
    for _ in range(300):
        optimizer.zero_grad()
        likelihood(torch.zeros_like(target), target).backward()
        optimizer.step()
    maximum = target.square().mean().sqrt().item()  # the maximum likelihood estimate in closed form
    assert likelihood.noise.item() == pytest.approx(maximum, rel=1e-4)
    assert abs(likelihood.noise.item() - true) < 5 * true / math.sqrt(2 * 4000)
